"""The official client against the bundled pair: what it gets is what the library writes."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.serve.conftest import MODEL, PROMPT, Server

from antiphon import generate_many
from antiphon.methods import SMC, Autoregressive, Method, Speculative
from antiphon.params import SamplingParams
from antiphon.result import Result

openai = pytest.importorskip("openai")

METHODS: dict[str, Method] = {
    "autoregressive": Autoregressive(),
    "speculative": Speculative(),
    "smc": SMC(particles=4, gamma=4),
}


def client(server: Server, **options: Any) -> Any:
    return openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120, **options
    )


def library(server: Server, method: str, chat: bool = True, **fields: Any) -> list[Result]:
    """What the library writes for the same request; the server is idle meanwhile."""
    params = SamplingParams(**fields)
    return generate_many(server.pair, [PROMPT], METHODS[method], params, chat=chat)[0]


def ask(server: Server, method: str = "speculative", **fields: Any) -> Any:
    return client(server).chat.completions.create(
        model=f"{MODEL}@{method}", messages=[{"role": "user", "content": PROMPT}], **fields
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_chat_answers_as_the_library_does(server: Server, method: str) -> None:
    wish: dict[str, Any] = {"temperature": 0.8, "max_tokens": 60, "seed": 5}
    answer = ask(server, method, **wish)
    (own,) = library(server, method, **wish)
    assert answer.choices[0].message.content == own.text
    assert answer.choices[0].finish_reason == own.finish_reason
    assert answer.usage.prompt_tokens == own.statistics.prompt_tokens
    assert answer.usage.completion_tokens == len(own.token_ids)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len(own.token_ids)
    assert ask(server, method, **wish).choices[0].message.content == own.text


def test_three_samples_of_a_completion(server: Server) -> None:
    wish: dict[str, Any] = {"temperature": 1.0, "max_tokens": 40, "seed": 3, "n": 3}
    answer = client(server).completions.create(model=MODEL, prompt=PROMPT, **wish)
    own = library(server, "speculative", chat=False, **wish)
    assert [choice.text for choice in answer.choices] == [result.text for result in own]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.prompt_tokens == own[0].statistics.prompt_tokens


def test_a_stream_tells_the_same_text_and_its_usage(server: Server) -> None:
    wish: dict[str, Any] = {"temperature": 0.7, "max_tokens": 60, "seed": 9, "n": 2}
    chunks = list(ask(server, stream=True, stream_options={"include_usage": True}, **wish))
    texts, reasons = ["", ""], {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    own = library(server, "speculative", **wish)
    assert texts == [result.text for result in own]
    assert reasons == {i: result.finish_reason for i, result in enumerate(own)}
    assert chunks[-1].usage.completion_tokens == sum(len(result.token_ids) for result in own)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len(chunks) > 8


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_across_chunk_borders_is_never_shown(server: Server, stream: bool) -> None:
    (whole,) = library(server, "autoregressive", max_tokens=60)
    middle = len(whole.text) // 2
    stop = whole.text[middle : middle + 7]  # In the middle of tokens, over several of them.
    wish = {"max_tokens": 60, "temperature": 0, "stop": [stop, "never\n\n\nthere"]}
    answer = ask(server, stream=stream, **wish)
    text = (
        "".join(c.delta.content or "" for chunk in answer for c in chunk.choices)
        if stream
        else answer.choices[0].message.content
    )
    assert text == whole.text[: whole.text.index(stop)]


def test_logprobs_are_the_targets(server: Server) -> None:
    wish: dict[str, Any] = {"max_tokens": 12, "temperature": 0}
    answer = ask(server, logprobs=True, top_logprobs=3, **wish)
    (own,) = library(server, "speculative", logprobs=3, **wish)
    content = answer.choices[0].logprobs.content
    assert [token.logprob for token in content] == pytest.approx(own.logprobs)
    assert "".join(token.token for token in content) == own.text
    assert all(bytes(token.bytes).decode() == token.token for token in content)
    assert all(len(token.top_logprobs) == 3 for token in content)
    streamed = [
        token.logprob
        for chunk in ask(server, logprobs=True, stream=True, **wish)
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]
    assert streamed == pytest.approx(own.logprobs)
    old = client(server).completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=9, temperature=0, logprobs=2
    )
    logprobs = old.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 9
    starts = [sum(map(len, logprobs.tokens[:i])) for i in range(9)]
    assert logprobs.text_offset == starts
    assert all(len(top) == 2 for top in logprobs.top_logprobs)
    assert all(math.isfinite(value) for value in logprobs.token_logprobs)


@pytest.mark.parametrize(
    "text",
    ["Grüße 👩‍👩‍👧 aus 東京", "\N{ZERO WIDTH JOINER}e\N{COMBINING ACUTE ACCENT}", "\x00\x07"],
)
def test_any_text_is_a_prompt_and_no_character_is_broken(server: Server, text: str) -> None:
    pieces = [
        choice.text
        for chunk in client(server).completions.create(
            model=MODEL, prompt=text, max_tokens=24, temperature=1.5, seed=1, stream=True
        )
        for choice in chunk.choices
    ]
    own = generate_many(
        server.pair,
        [text],
        Speculative(),
        SamplingParams(max_tokens=24, temperature=1.5, seed=1),
        chat=False,
    )[0][0]
    assert "".join(pieces) == own.text


def test_32_clients_at_once_with_mixed_methods_get_their_own_answers(server: Server) -> None:
    wishes = [
        {
            "method": list(METHODS)[i % 3],
            "temperature": 0.5 + 0.1 * (i % 5),
            "max_tokens": 8 + i,
            "seed": i,
            "n": 1 + i % 2,
        }
        for i in range(32)
    ]
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda wish: ask(server, **wish), wishes))
    for wish, answer in zip(wishes, answers, strict=True):
        own = library(server, **wish)
        assert [choice.message.content for choice in answer.choices] == [r.text for r in own]


def test_models_are_the_pair_and_its_methods(server: Server) -> None:
    names = [model.id for model in client(server).models.list()]
    assert names[0] == MODEL
    assert {f"{MODEL}@{name}" for name in METHODS} <= set(names)
    assert f"{MODEL}@cospec" in names
    assert f"{MODEL}@specguard" not in names  # It needs a profile, which this server has not.
    assert client(server).models.retrieve(f"{MODEL}@smc").id == f"{MODEL}@smc"


def test_metrics_count_what_was_written(server: Server) -> None:
    def counts() -> dict[str, float]:
        text = httpx.get(f"{server.url}/metrics").text
        lines = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
        return {name: float(value) for name, _, value in lines}

    before = counts()
    wish: dict[str, Any] = {"temperature": 0.9, "max_tokens": 40, "seed": 4}
    meanings = {"smc": "resamples", "rsd": "steps_refused", "cospec": "rescues"}
    asked = {name: ask(server, name, **wish) for name in meanings}
    after = counts()
    for name, meaning in meanings.items():

        def grown(metric: str, name: str = name) -> float:
            key = f'antiphon_{metric}_total{{method="{name}"}}'
            return after.get(key, 0.0) - before.get(key, 0.0)

        (choice,) = asked[name].choices
        assert grown("generation_tokens") == asked[name].usage.completion_tokens
        assert grown("prompt_tokens") == asked[name].usage.prompt_tokens
        assert grown(meaning) == grown("fired")
        assert (grown("steps") > 0) == (name == "rsd")
        assert choice.message.content
    assert after['antiphon_kv_slots{model="target"}'] >= 0


def test_our_own_fields_and_what_they_tell(server: Server) -> None:
    answer = ask(
        server,
        "smc",
        temperature=0.9,
        max_tokens=30,
        seed=2,
        extra_body={"particles": 3, "gamma": 2, "antiphon": True},
    )
    ours = answer.choices[0].model_extra["antiphon"]
    own = generate_many(
        server.pair,
        [PROMPT],
        SMC(particles=3, gamma=2),
        SamplingParams(temperature=0.9, max_tokens=30, seed=2),
    )[0][0]
    assert "".join(token["text"] for token in ours["tokens"]) == own.text
    assert [token["who"] for token in ours["tokens"]] == list(own.provenance)
    assert ours["statistics"]["target_passes"] == own.statistics.target_passes
    assert len(ours["rounds"][-1]["notes"]["particles"]) == 3
    assert ours["seed"] == 2


@pytest.mark.parametrize("method", METHODS)
def test_json_of_a_schema(server: Server, method: str) -> None:
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    wish = {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
        "temperature": 1.0,
        "max_tokens": 50,
        "n": 2,
    }
    for choice in ask(server, method, **wish).choices:
        assert 0 <= json.loads(choice.message.content)["answer"] <= 999
        assert choice.finish_reason == "stop"
    loose = ask(server, method, response_format={"type": "json_object"}, temperature=1.0)
    assert loose.choices[0].message.content.startswith("{")
