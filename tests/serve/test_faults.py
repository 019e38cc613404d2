"""What goes wrong gets its status code, and hurts nobody else."""

from __future__ import annotations

import gc
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.serve.conftest import MODEL, PROMPT, Server, serving

from antiphon.methods import Speculative
from antiphon.models.pair import ModelPair

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}]}
TEXT = {"model": MODEL, "prompt": PROMPT}


def post(
    server: Server, body: Any, path: str = "/v1/completions", **options: Any
) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"content-type": "application/json", **options.pop("headers", {})}
    return httpx.post(f"{server.url}{path}", content=content, headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 7}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**9}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 1000}, "n"),
        ({"n": -1}, "n"),
        ({"stop": [str(i) for i in range(1000)]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"logprobs": 99}, "logprobs"),
        ({"echo": True}, "echo"),
        ({"suffix": "."}, "suffix"),
        ({"best_of": 4}, "best_of"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "nonsense"}},
                }
            },
            "response_format",
        ),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**12]}, "prompt"),
        ({"prompt": ["a"] * 100}, "prompt"),
        ({"prompt": "a " * 5000}, "prompt"),
        ({"nonsense": 1}, "nonsense"),
        ({"particles": 4}, "particles"),
        ({"gamma": 10**6}, "gamma"),
        ({"gamma": "four"}, "gamma"),
        ({"gamma": [1]}, "gamma"),
        ({"method": "magic"}, "method"),
        ({"method": "specguard"}, "method"),
        ({"arbiter": "/etc/passwd"}, "arbiter"),
        ({"model": f"{MODEL}@smc", "method": "easd"}, "method"),
        ({"model": f"{MODEL}@smc", "temperature": 0}, "temperature"),
    ],
)
def test_bad_fields_are_refused_by_name(server: Server, change: Any, param: str) -> None:
    answer = post(server, TEXT | change)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param or param in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"top_logprobs": 3}, "top_logprobs"),
    ],
)
def test_bad_chats_are_refused_by_name(server: Server, change: Any, param: str) -> None:
    answer = post(server, CHAT | change, "/v1/chat/completions")
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert param in (error["param"] or "") or param in error["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{garbage", 400),
        (b"\xff\xfe", 400),
        (b"[" * 100_000, 400),
        (b'{"model": "lab", "prompt": "\\ud800"}', 400),
        (b'{"model": "lab", "prompt": "a", "temperature": 1e999}', 400),
        (b'{"model": "lab", "prompt": "a", "seed": %s}' % (b"9" * 6000), 400),
        (b'{"prompt": "%s"}' % (b"a" * 10_000_000), 413),
        (b'{"model": "other", "prompt": "a"}', 404),
        (b'{"model": "lab@magic", "prompt": "a"}', 404),
        (b"", 400),
    ],
)
def test_bad_bodies(server: Server, body: bytes, status: int) -> None:
    answer = post(server, body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_prompt_at_the_context_limit_leaves_one_token(server: Server) -> None:
    ids = [5] * 1023
    answer = post(server, TEXT | {"prompt": ids, "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 1
    assert post(server, TEXT | {"prompt": [*ids, 5], "max_tokens": 1}).status_code == 400


def test_clients_that_go_away_free_their_place_and_memory(server: Server) -> None:
    pool = server.pair.target.slots  # type: ignore[attr-defined]
    body = json.dumps(CHAT | {"stream": True, "max_tokens": 800, "ignore_eos": True})

    def drop(_: int) -> None:
        with httpx.stream(
            "POST",
            f"{server.url}/v1/chat/completions",
            content=body,
            headers={"content-type": "application/json"},
            timeout=60,
        ) as stream:
            next(stream.iter_lines())

    with ThreadPoolExecutor(25) as crowd:
        list(crowd.map(drop, range(50)))
    end = time.monotonic() + 20
    while running(server) and time.monotonic() < end:
        time.sleep(0.05)
    assert running(server) == 0
    kept = server.pair.target.prefixes.kept_tokens  # type: ignore[attr-defined]
    gc.collect()
    assert pool.in_use <= kept
    assert post(server, TEXT | {"max_tokens": 4}).status_code == 200


def running(server: Server) -> float:
    text = httpx.get(f"{server.url}/metrics").text
    names = ("antiphon_num_requests_running ", "antiphon_num_requests_waiting ")
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(names))


def test_a_full_line_is_429_and_the_others_finish(lab_pair: ModelPair) -> None:
    with serving(lab_pair, batch=1, queue=1) as small, ThreadPoolExecutor(8) as crowd:
        body = TEXT | {"max_tokens": 200, "ignore_eos": True}
        answers = list(crowd.map(lambda _: post(small, body), range(8)))
        statuses = sorted(answer.status_code for answer in answers)
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 2
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.headers["retry-after"]


def test_a_request_that_takes_too_long_is_ended(lab_pair: ModelPair) -> None:
    with serving(lab_pair, timeout=0.05) as hasty:
        body = TEXT | {"max_tokens": 900, "ignore_eos": True}
        assert post(hasty, body).status_code == 504
        streamed = post(hasty, body | {"stream": True})
        assert "timeout_error" in streamed.text
        assert streamed.text.endswith("data: [DONE]\n\n")


def test_the_key_is_asked_for(lab_pair: ModelPair) -> None:
    with serving(lab_pair, key="sesame") as locked:
        assert post(locked, TEXT).status_code == 401
        wrong = {"authorization": "Bearer sesam"}
        assert post(locked, TEXT, headers=wrong).status_code == 401
        right = {"authorization": "Bearer sesame"}
        assert post(locked, TEXT, headers=right).status_code == 200
        assert httpx.get(f"{locked.url}/metrics").status_code == 401
        assert httpx.get(f"{locked.url}/health").status_code == 200


def test_browsers_of_other_origins_are_kept_out(lab_pair: ModelPair, server: Server) -> None:
    origin = {"origin": "https://elsewhere.example"}
    assert "access-control-allow-origin" not in httpx.get(server.url, headers=origin).headers
    with serving(lab_pair, origins=["https://elsewhere.example"]) as open_one:
        headers = httpx.get(open_one.url, headers=origin).headers
        assert headers["access-control-allow-origin"] == "https://elsewhere.example"


def test_a_method_that_raises_hurts_itself_alone(
    lab_pair: ModelPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Speculative.run

    def broken(self: Speculative, request: Any, models: Any) -> Any:
        if self.gamma == 7:
            raise ZeroDivisionError("on purpose")
        return run(self, request, models)

    monkeypatch.setattr(Speculative, "run", broken)
    with serving(lab_pair) as server, ThreadPoolExecutor(8) as crowd:
        bodies = [TEXT | {"gamma": 7 if i % 2 else 3, "max_tokens": 30} for i in range(8)]
        statuses = list(crowd.map(lambda body: post(server, body).status_code, bodies))
        assert statuses == [200, 500] * 4
        assert "on purpose" in post(server, TEXT | {"gamma": 7}).json()["error"]["message"]


def test_what_is_in_flight_at_the_end_is_finished(lab_pair: ModelPair) -> None:
    with ThreadPoolExecutor(4) as crowd:
        with serving(lab_pair) as server:
            body = TEXT | {"max_tokens": 120, "ignore_eos": True}
            asked = [crowd.submit(post, server, body) for _ in range(4)]
            while running(server) < 4:
                time.sleep(0.005)
        for answer in asked:
            assert answer.result().json()["usage"]["completion_tokens"] == 120


def test_memory_is_flat_and_beginnings_are_read_once(lab_pair: ModelPair) -> None:
    target: Any = lab_pair.target
    with serving(lab_pair, keep=600) as server:
        words = "one two three four five six seven eight nine ten " * 8
        first = post(server, TEXT | {"prompt": words + "a", "max_tokens": 8, "temperature": 0})
        again = post(server, TEXT | {"prompt": words + "a", "max_tokens": 8, "temperature": 0})
        assert again.json()["choices"] == first.json()["choices"]
        for i in range(60):
            post(server, TEXT | {"prompt": f"{i} " * 30, "max_tokens": 4})
        gc.collect()
        assert target.slots.in_use <= 600
        fresh = post(server, TEXT | {"prompt": words + "a", "max_tokens": 8, "temperature": 0})
        assert fresh.json()["choices"] == first.json()["choices"]


def test_the_page_holds_all_it_needs(server: Server) -> None:
    text = httpx.get(server.url).text
    assert "<title>antiphon</title>" in text
    assert '"OFFERS"' not in text
    assert '"methods": ["autoregressive"' in text
    assert "http://" not in text
    assert "https://" not in text


def test_tokenize_counts_as_the_model_does(server: Server) -> None:
    plain = post(server, {"prompt": PROMPT}, "/tokenize").json()
    assert plain["tokens"] == server.pair.tokenizer(PROMPT).input_ids
    assert plain["count"] == len(plain["tokens"])
    assert plain["max_model_len"] == 1024
    chat = post(server, {"messages": CHAT["messages"]}, "/tokenize").json()
    assert chat["count"] > plain["count"]
    assert post(server, {}, "/tokenize").status_code == 400
