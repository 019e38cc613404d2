"""Where methods meet the rest: truncation, stop strings, grammars, alternatives, shared engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.toys import TableModel, toy_engine

from antiphon.costs import PairCosts, PassCosts
from antiphon.drafting.length import FittedLength
from antiphon.drawing import Randomness
from antiphon.engine import Engine, Vocabulary
from antiphon.errors import UserError
from antiphon.methods import (
    RSD,
    SMC,
    Autoregressive,
    Majority,
    Method,
    SpecGuard,
    SpecReason,
    Speculative,
    StepScore,
)
from antiphon.methods.base import Models
from antiphon.methods.particle import Draft
from antiphon.methods.particles import effective_size
from antiphon.methods.selection import answer
from antiphon.methods.speculative import block_length
from antiphon.methods.weighing import Round, whole_blocks
from antiphon.params import SamplingParams
from antiphon.result import Result
from antiphon.rules.entropy_veto import EntropyVeto
from antiphon.rules.evidence import Evidence
from antiphon.rules.topk import TopK
from antiphon.sampling import Distributions, distribution

TARGET, DRAFT = TableModel(12, seed=1), TableModel(12, seed=2)


def one(method: Method, prompt: Sequence[int] = (1, 2), **wishes: object) -> Result:
    params = SamplingParams(**wishes)  # type: ignore[arg-type]
    ((result,),) = toy_engine(TARGET, DRAFT).generate([tuple(prompt)], [params], method)
    assert result.error is None
    return result


def evidence(token: int, p: torch.Tensor, q: torch.Tensor) -> Evidence:
    rows = p.expand(2, -1)
    return Evidence(torch.tensor([token]), rows, q[None], rows, q[None])


def spread(*tokens: int) -> torch.Tensor:
    p = torch.zeros(50)
    p[list(tokens)] = 1 / len(tokens)
    return p


def test_a_population_without_weight_has_no_size() -> None:
    assert effective_size(np.full(4, -np.inf)) == 0.0


@pytest.mark.parametrize(("possible", "kept"), [(2, 2), (1, 1), (0, 0)])
def test_guided_blocks_end_before_all_have_died(possible: int, kept: int) -> None:
    """The tokens 0, 1, 2 are drafted twice; the target can say only the first `possible`."""
    logits = torch.full((4, 4), -torch.inf)
    logits[:, 3] = 0.0
    logits[:, :possible] = 0.0
    drafts = [Draft(tokens=[0, 1, 2], log_q=[-0.7] * 3) for _ in range(2)]
    p = Distributions(logits, SamplingParams(temperature=1.0), ())
    drafted = Round(drafts, [range(4)] * 2, p, 1.0, frozenset(), Randomness(0))
    for outcome in whole_blocks(drafted, np.zeros(2), [0, 1], bar=1.0):
        assert outcome.kept == kept
        assert outcome.log_gain > -np.inf


def test_guided_smc_survives_truncation() -> None:
    for seed in range(20):
        result = one(SMC(4, 4, guided=True), temperature=1.0, top_k=3, max_tokens=40, seed=seed)
        assert result.rounds[-1].notes["log_z"] is not None


def test_topk_keeps_no_token_that_cannot_be() -> None:
    rule = TopK(k=2)
    assert not rule.keep(evidence(7, spread(5), spread(7))).any()
    assert rule.keep(evidence(5, spread(5), spread(5))).all()
    truncated = {"temperature": 1.0, "top_p": 0.5, "max_tokens": 40, "seed": 1}
    for method in (Speculative(rule="topk/k=2"), Speculative(rescue="topk/k=2")):
        tokens = one(method, **truncated).token_ids
        params = SamplingParams(**truncated)
        for i, token in enumerate(tokens):
            logits = TARGET.logits_after((1, 2, *tokens[:i]))
            assert distribution(logits[None], params)[0, token] > 0


@pytest.mark.parametrize(
    ("ours", "theirs", "share"),
    [
        ((1, 2), (3, 4), 0.0),
        ((1, 2), (1, 2), 1.0),
        ((1, 2), (1, 4), 0.5),
        ((1,), (1, 2, 3, 4), 0.25),
    ],
)
def test_only_tokens_that_can_be_overlap(
    ours: Sequence[int], theirs: Sequence[int], share: float
) -> None:
    shared = EntropyVeto(0.0, 0.0)._shared(evidence(theirs[0], spread(*ours), spread(*theirs)))
    assert shared.tolist() == pytest.approx([share])


class Digits:
    """A detokenizer of digits, a space and a bar."""

    def push(self, token: int) -> str:
        return "0123456789 |"[token]

    def flush(self) -> str:
        return ""


@pytest.mark.parametrize("method", [Majority(5), SMC(5, 3, output="vote", threshold=0.0)])
def test_votes_are_over_what_is_seen(method: Method) -> None:
    engine = Engine(Models(TARGET, DRAFT), Vocabulary(lambda _: Digits(), frozenset()))
    for seed in range(30):
        params = SamplingParams(temperature=1.0, max_tokens=12, seed=seed, stop=("|",))
        ((result,),) = engine.generate([(1, 2)], [params], method)
        notes = result.rounds[-1].notes
        texts = notes.get("texts") or [each["tokens"] for each in notes["particles"]]
        weights = [1.0] * 5 if "texts" in notes else [p["weight"] for p in notes["particles"]]
        seen = [answer("".join(map(Digits().push, text)).split("|")[0]) for text in texts]
        votes: Counter[str] = Counter()
        for each, weight in zip(seen, weights, strict=True):
            votes[each] += weight  # type: ignore[assignment]
        assert votes[answer(result.text)] == pytest.approx(max(votes.values()))


STEPWISE = (
    Majority(3),
    StepScore(threshold=-1.0, longest=4),
    SpecGuard(beta=1.0, low_logprob=-5.0, high_logprob=0.0, longest=4),
)


@pytest.mark.parametrize("method", STEPWISE, ids=lambda method: type(method).__name__)
def test_alternatives_are_told_by_every_method(method: Method) -> None:
    result = one(method, temperature=1.0, max_tokens=8, logprobs=3, seed=1)
    assert result.top_logprobs is not None
    assert [len(each) for each in result.top_logprobs] == [3] * len(result.token_ids)


def test_at_the_contexts_end_no_question_is_asked() -> None:
    small = [TableModel(12, seed=seed, context_length=20) for seed in (1, 2)]
    engine = toy_engine(*small)
    models = engine.models
    models = Models(models.target, models.draft, encode=lambda text: (3,) * len(text))
    engine = Engine(models, engine.vocabulary)
    params = SamplingParams(temperature=1.0, max_tokens=16, seed=1)
    method = SpecReason(question="good?", longest=4, threshold=0.0)
    ((result,),) = engine.generate([(1, 2, 3, 4)], [params], method)
    assert (result.error, len(result.token_ids)) == (None, 16)


class Even:
    """A language of even tokens."""

    def allowed(self, output: tuple[int, ...], vocab_size: int) -> torch.Tensor:
        return torch.arange(vocab_size) % 2 == 0


@pytest.mark.parametrize("rule", [{"rule": "cascade"}, {"rescue": "coin/rate=1"}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_copied_drafts_keep_to_a_grammar(rule: dict[str, str], temperature: float) -> None:
    method = Speculative(drafter="ngram", **rule)  # type: ignore[arg-type]
    prompt = tuple(range(12)) * 3
    result = one(method, prompt, temperature=temperature, max_tokens=40, seed=2, grammar=Even())
    assert not [token for token in result.token_ids if token % 2]


def test_looking_up_costs_no_draft_pass() -> None:
    costs = PairCosts(PassCosts({1: 1.0, 64: 1.05}), PassCosts({1: 0.5, 64: 0.5}))
    models = Models(TARGET, DRAFT, costs)
    free = FittedLength(PairCosts(costs.target, None))
    assert block_length("auto", "ngram", SamplingParams(), models).next() == free.next()


@pytest.mark.parametrize("fields", [{"slope": 2000.0}, {"delta": 100.0}, {"delta": -100.0}])
def test_chances_do_not_overflow(fields: dict[str, float]) -> None:
    chance = RSD(accept="logistic", **fields).chance(0.1)  # type: ignore[arg-type]
    assert 0.0 <= chance <= 1.0


def test_what_cannot_work_is_refused_before_it_runs() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=4)
    engine = toy_engine(TARGET, DRAFT)
    for method, message in (
        (SpecGuard(beta=1.0, low_logprob=0.0, high_logprob=-5.0), "give a range"),
        (StepScore(aggregate="p10"), "profile"),
    ):
        with pytest.raises(UserError, match=message):
            engine.generate([(1, 2)], [params], method)
    with pytest.raises(UserError, match="temperature"):
        SMC(draft_temperature=1e-6)


def test_a_refused_prompt_leaves_nothing_in_line() -> None:
    engine = toy_engine(TARGET, DRAFT)
    warm, cold = SamplingParams(temperature=1.0, max_tokens=5), SamplingParams(max_tokens=5)
    with pytest.raises(UserError):
        engine.generate([(1, 2), (2, 3)], [warm, cold], SMC())
    assert not engine.busy
    ((result,),) = engine.generate([(1, 2)], [warm], SMC())
    assert result.error is None


@pytest.mark.parametrize(("long", "short"), [(6, 3), (3, 6), (5, 5)])
def test_streams_of_one_engine_lose_nothing(long: int, short: int) -> None:
    engine = toy_engine(TARGET, DRAFT)
    alone = [
        "".join(
            d.text for d in engine.stream(prompt, SamplingParams(max_tokens=n), Autoregressive())
        )
        for prompt, n in (((1, 2), long), ((2, 3), short))
    ]
    first = engine.stream((1, 2), SamplingParams(max_tokens=long), Autoregressive())
    second = engine.stream((2, 3), SamplingParams(max_tokens=short), Autoregressive())
    texts = [next(first).text, next(second).text]
    texts[0] += "".join(delta.text for delta in first)
    texts[1] += "".join(delta.text for delta in second)
    assert texts == alone
    assert not engine.busy


def test_a_stream_ends_where_somebody_else_cancels() -> None:
    engine = toy_engine(TARGET, DRAFT)
    stream = engine.stream((1, 2), SamplingParams(max_tokens=50), Autoregressive())
    name = next(stream).request
    engine.cancel(name)
    *_, last = stream
    assert last.result is not None
    assert last.result.finish_reason == "cancelled"
