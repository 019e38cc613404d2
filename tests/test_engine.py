"""Laws of the loop, on toy models: independence, seeds, joining, leaving, failing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tests.toys import LETTERS, TableModel, toy_engine

from antiphon.engine import Engine, Vocabulary
from antiphon.errors import UserError
from antiphon.methods import Autoregressive, Method, Models, Speculative
from antiphon.models.base import Extension, Scores
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps, ask

METHODS: list[Method] = [
    Autoregressive(),
    Speculative(gamma=3),
    Speculative(gamma=2, chains=3),
    Speculative(gamma=4, drafter="ngram", ngram=2),
]
PROMPTS = [(0, 1), (2,), (3, 3, 1), (1, 0, 2, 4), (4,)]


def models() -> tuple[TableModel, TableModel]:
    return TableModel(5, seed=1), TableModel(5, seed=2)


def wishes(count: int) -> list[SamplingParams]:
    return [
        SamplingParams(temperature=0.4 * (i % 4), max_tokens=5 + 3 * i, seed=i, logprobs=i % 3)
        for i in range(count)
    ]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_same_seed_same_text_alone_in_a_batch_and_beside_any_neighbour(method: Method) -> None:
    params = wishes(len(PROMPTS))
    alone = [
        toy_engine(*models(), batch=1).generate([prompt], [wish], method)[0][0]
        for prompt, wish in zip(PROMPTS, params, strict=True)
    ]
    together = toy_engine(*models(), batch=16).generate(PROMPTS, params, method)
    mixed = toy_engine(*models(), batch=16)
    names = []
    for i, (prompt, wish) in enumerate(zip(PROMPTS, params, strict=True)):
        mixed.submit((i % 5,), SamplingParams(temperature=1.0, seed=9 + i), METHODS[i % 4])
        names += mixed.submit(prompt, wish, method)
    done = {d.request: d.result for _ in iter(lambda: mixed.busy, False) for d in mixed.step()}
    for one, (other,), name in zip(alone, together, names, strict=True):
        neighbour = done[name]
        assert neighbour is not None
        for result in (other, neighbour):
            assert result.token_ids == one.token_ids
            assert result.logprobs == one.logprobs
            assert result.provenance == one.provenance


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_stream_is_the_result_in_pieces(method: Method) -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=30, stop=("ab", "cc"))
    ((whole,),) = toy_engine(*models()).generate([PROMPTS[0]], [params], method)
    deltas = list(toy_engine(*models()).stream(PROMPTS[0], params, method))
    result = deltas[-1].result
    assert result is not None
    assert result.text == whole.text == "".join(delta.text for delta in deltas)
    assert result.token_ids == tuple(t for delta in deltas for t in delta.token_ids)
    assert result.provenance == tuple(p for delta in deltas for p in delta.provenance)


def test_stop_strings_cut_text_ids_logprobs_and_rounds_at_one_place() -> None:
    params = SamplingParams(temperature=1.0, seed=4, max_tokens=60)
    engine = toy_engine(*models())
    ((free,),) = engine.generate([PROMPTS[0]], [params], Speculative(gamma=5))
    stop = free.text[13:16]
    at = free.text.index(stop)
    bounded = SamplingParams(temperature=1.0, seed=4, max_tokens=60, stop=(stop,))
    ((cut,),) = toy_engine(*models()).generate([PROMPTS[0]], [bounded], Speculative(gamma=5))
    assert cut.text == free.text[:at]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.token_ids == free.token_ids[:at]
    assert cut.logprobs == free.logprobs[:at]
    assert len(cut.provenance) == at == cut.statistics.completion_tokens
    assert tuple(t for r in cut.rounds for t in r.committed) == cut.token_ids


def test_n_samples_differ_and_each_repeats() -> None:
    params = SamplingParams(temperature=1.5, seed=7, n=8, max_tokens=12)
    (first,) = toy_engine(*models()).generate([(1,)], [params], Speculative(gamma=3))
    (again,) = toy_engine(*models(), batch=3).generate([(1,)], [params], Speculative(gamma=3))
    assert [r.token_ids for r in first] == [r.token_ids for r in again]
    assert len({r.token_ids for r in first}) > 1
    unseeded = SamplingParams(temperature=1.5, n=2, max_tokens=12)
    (fresh,) = toy_engine(*models()).generate([(1,)], [unseeded], Autoregressive())
    assert fresh[0].seed == fresh[1].seed
    repeat = SamplingParams(temperature=1.5, n=2, max_tokens=12, seed=fresh[0].seed)
    (same,) = toy_engine(*models()).generate([(1,)], [repeat], Autoregressive())
    assert [r.token_ids for r in same] == [r.token_ids for r in fresh]


def test_a_cancelled_request_keeps_what_it_wrote_and_its_neighbours_go_on() -> None:
    engine = toy_engine(*models())
    (doomed,) = engine.submit((1,), SamplingParams(max_tokens=500), Autoregressive())
    (other,) = engine.submit((2,), SamplingParams(max_tokens=9), Speculative(gamma=2))
    for _ in range(6):
        engine.step()
    delta = engine.cancel(doomed)
    assert delta is not None
    assert delta.result is not None
    assert delta.result.finish_reason == "cancelled"
    assert 0 < len(delta.result.token_ids) < 500
    finished = {}
    while engine.busy:
        finished |= {d.request: d.result for d in engine.step() if d.result}
    assert len(finished[other].token_ids) == 9
    assert engine.cancel(doomed) is None


def test_leaving_a_stream_cancels_it() -> None:
    engine = toy_engine(*models())
    for _ in engine.stream((1,), SamplingParams(max_tokens=500), Autoregressive()):
        break
    assert not engine.busy


class Broken:
    """Raises after two tokens, or asks for the impossible."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def check(self, models: Models, params: SamplingParams) -> None:
        return

    def run(self, request: Request, models: Models) -> Steps[None]:
        inner = Autoregressive().run(request, models)
        event = next(inner)
        for _ in range(4):
            reply = yield event
            event = inner.send(reply)
        if self.kind == "raises":
            raise RuntimeError("boom")
        tree = models.target.new_tree(4)
        yield from ask(Extension(models.target, tree, (1,), parents=(99,)))


@pytest.mark.parametrize("kind", ["raises", "asks the impossible"])
def test_an_error_ends_its_own_request_alone(kind: str) -> None:
    engine = toy_engine(*models())
    (bad,) = engine.submit((1,), SamplingParams(max_tokens=9), Broken(kind))
    (good,) = engine.submit((1,), SamplingParams(max_tokens=9), Autoregressive())
    done = {}
    while engine.busy:
        done |= {d.request: d.result for d in engine.step() if d.result}
    assert done[bad].finish_reason == "error"
    assert done[bad].error
    assert len(done[bad].token_ids) == 2
    assert done[good].token_ids == done[good].token_ids
    assert len(done[good].token_ids) == 9


def test_more_requests_than_places_wait_in_line_and_all_finish() -> None:
    engine = toy_engine(*models(), batch=3)
    prompts = [(i % 5,) for i in range(20)]
    results = engine.generate(prompts, [SamplingParams(max_tokens=6)] * 20, Autoregressive())
    assert [len(r.token_ids) for (r,) in results] == [6] * 20
    assert max(engine.models.target.passes) <= 3  # type: ignore[attr-defined]


def test_requests_in_lockstep_share_their_passes() -> None:
    """Guards batching: 16 speculating requests must not need 16 times the passes of one."""
    params = [SamplingParams(max_tokens=20, ignore_eos=True)] * 16
    one, many = models(), models()
    toy_engine(*one).generate([(1,)], params[:1], Speculative(gamma=3))
    toy_engine(*many).generate([(1,)] * 16, params, Speculative(gamma=3))
    assert len(many[0].passes) == len(one[0].passes)
    assert len(many[1].passes) == len(one[1].passes)


@pytest.mark.parametrize(
    ("prompt", "params", "fix"),
    [
        ((), SamplingParams(), "empty"),
        ((1,) * 40, SamplingParams(max_tokens=4), "shorten"),
        ((1,) * 20, SamplingParams(max_tokens=20), "lower max_tokens to 12"),
        ((1,), SamplingParams(max_tokens=4, logit_bias={77: 1.0}), "77"),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_work(
    prompt: Sequence[int], params: SamplingParams, fix: str
) -> None:
    model = TableModel(5, context_length=32)
    engine = Engine(Models(model), LETTERS)
    with pytest.raises(UserError, match=fix):
        engine.generate([(1,), prompt], [SamplingParams(max_tokens=2), params], Autoregressive())
    assert not model.passes


class Stumbling(TableModel):
    """Fails in the middle of a forward."""

    def forward(self, asks: Sequence[Extension]) -> list[Scores]:
        if len(self.passes) == 3:
            self.passes.append(0)
            raise torch.OutOfMemoryError("no memory")
        return super().forward(asks)


def test_a_failing_forward_ends_the_requests_in_it_and_the_engine_lives_on() -> None:
    engine = Engine(Models(Stumbling(5)), Vocabulary(LETTERS.detokenizer, frozenset()))
    (results,) = engine.generate([(1,)], [SamplingParams(max_tokens=9)], Autoregressive())
    assert results[0].finish_reason == "error"
    assert len(results[0].token_ids) == 3
    (results,) = engine.generate([(1,)], [SamplingParams(max_tokens=9)], Autoregressive())
    assert results[0].finish_reason == "length"


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_ignoring_the_end_token_writes_on(method: Method) -> None:
    params = [SamplingParams(max_tokens=30, ignore_eos=ignore) for ignore in (True, False)]
    engine = toy_engine(*models(), eos=(0, 1, 2, 3, 4))
    (on,), (ended,) = engine.generate([(1,), (1,)], params, method)
    assert (len(on.token_ids), on.finish_reason) == (30, "length")
    assert (len(ended.token_ids), ended.finish_reason) == (1, "stop")
