"""Exact speculative decoding on toy models, by enumeration."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from scipy import stats
from tests.toys import TableModel, exact_outputs, toy_engine

from antiphon.costs import PairCosts, PassCosts
from antiphon.errors import UserError
from antiphon.methods import Autoregressive, Speculative
from antiphon.params import SamplingParams

PROMPT = (1, 0, 2)
GREEDY_SETTINGS = [
    Speculative(gamma=gamma, chains=chains, confidence=confidence)
    for gamma in (1, 2, 3, 5, 8, 12)
    for chains, confidence in ((1, 0.0), (3, 0.0), (1, 0.5))
] + [Speculative(gamma=gamma, drafter="ngram", ngram=n) for gamma in (1, 4, 12) for n in (2, 4)]
GREEDY_SETTINGS += [
    Speculative(gamma="auto"),
    Speculative(gamma="auto", chains=3),
    Speculative(gamma="auto", drafter="ngram"),
]
COSTS = PairCosts(PassCosts({1: 1.0, 64: 4.0}), PassCosts({1: 0.1, 64: 0.2}))
"""Of passes where drafting pays: long blocks, ended by doubt."""


@pytest.mark.parametrize("method", GREEDY_SETTINGS, ids=str)
@pytest.mark.parametrize("batch", [1, 16])
def test_greedy_speculation_is_the_target_token_for_token(method: Speculative, batch: int) -> None:
    """Guards acceptance, rollback and the batch: any slip changes a token somewhere."""
    target, draft = TableModel(5, seed=1), TableModel(5, seed=2)
    prompts = [(i % 5, (i * 3) % 5) for i in range(20)]
    params = [SamplingParams(max_tokens=3 + i, logprobs=2) for i in range(20)]
    plain = toy_engine(target, batch=batch).generate(prompts, params, Autoregressive())
    fast = toy_engine(target, draft, batch, (), COSTS).generate(prompts, params, method)
    for (a,), (b,) in zip(plain, fast, strict=True):
        assert b.token_ids == a.token_ids
        assert b.text == a.text
        assert b.logprobs == pytest.approx(a.logprobs, abs=1e-6)
        assert b.top_logprobs == a.top_logprobs


PIPELINES = {
    "plain": SamplingParams(temperature=1.0, max_tokens=4),
    "cold": SamplingParams(temperature=0.6, max_tokens=4),
    "top-k": SamplingParams(temperature=1.0, top_k=2, max_tokens=4),
    "top-p": SamplingParams(temperature=1.3, top_p=0.7, max_tokens=4),
    "min-p": SamplingParams(temperature=1.0, min_p=0.2, max_tokens=4),
    "penalties": SamplingParams(
        temperature=1.0,
        repetition_penalty=1.3,
        presence_penalty=0.7,
        frequency_penalty=0.5,
        max_tokens=4,
    ),
    "bias": SamplingParams(temperature=1.0, logit_bias={0: 1.0, 2: -1.5}, max_tokens=4),
}
DRAFTERS = {
    "auto": Speculative(gamma="auto"),
    "auto-chains2": Speculative(gamma="auto", chains=2),
    "gamma1": Speculative(gamma=1),
    "gamma3": Speculative(gamma=3),
    "gamma3-confident": Speculative(gamma=3, confidence=0.45),
    "chains2": Speculative(gamma=2, chains=2),
    "chains4": Speculative(gamma=3, chains=4),
    "ngram": Speculative(gamma=3, drafter="ngram", ngram=2),
}
SAMPLES = 1000
FALSE_ALARM = 1e-6  # per check; all of them together stay under 1e-4


COMBINATIONS = [
    *(("plain", drafter) for drafter in DRAFTERS),
    *(("penalties", drafter) for drafter in DRAFTERS),
    *((pipeline, "chains2") for pipeline in ("cold", "top-k", "top-p", "min-p", "bias")),
]


@pytest.mark.parametrize(("pipeline", "drafter"), COMBINATIONS)
def test_outputs_are_distributed_as_the_targets_own(pipeline: str, drafter: str) -> None:
    """Chi-square and total variation against the enumerated target.

    For every drafter and every stage of the pipeline; false-alarm rate 1e-6 for each check.
    """
    target, draft = TableModel(3, seed=11), TableModel(3, seed=12)
    params, method = PIPELINES[pipeline], DRAFTERS[drafter]
    truth = exact_outputs(target, PROMPT, params)
    wish = SamplingParams(**{**_fields(params), "seed": 5, "n": SAMPLES})
    engine = toy_engine(target, draft, batch=64, costs=COSTS)
    (results,) = engine.generate([PROMPT], [wish], method)
    counts = Counter(result.token_ids for result in results)
    assert set(counts) <= set(truth)
    check_distribution(counts, truth)


@pytest.mark.parametrize("pipeline", ["cold", "top-p", "penalties"])
def test_the_same_where_a_vocabulary_is_so_large_that_rows_come_one_by_one(
    pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon.logprobs._SMALL", 0)
    for drafter in ("gamma3", "chains2"):
        test_outputs_are_distributed_as_the_targets_own(pipeline, drafter)


@pytest.mark.parametrize("method", [Speculative(gamma=3), Speculative(gamma=3, chains=3)], ids=str)
def test_the_end_token_inside_a_block_ends_the_text_and_nothing_else(method: Speculative) -> None:
    """Guards EOS handling mid-block: the distribution over whole texts must not shift."""
    target, draft = TableModel(3, seed=21), TableModel(3, seed=22)
    params = SamplingParams(temperature=1.0, max_tokens=5, seed=3, n=SAMPLES)
    truth = exact_outputs(target, PROMPT, params, eos=(2,))
    (results,) = toy_engine(target, draft, 64, eos=(2,)).generate([PROMPT], [params], method)
    check_distribution(Counter(result.token_ids for result in results), truth)
    assert all(r.finish_reason == ("stop" if r.token_ids[-1] == 2 else "length") for r in results)


def check_distribution(
    counts: Counter[tuple[int, ...]], truth: dict[tuple[int, ...], float]
) -> None:
    total = sum(counts.values())
    # Chi-square needs cells with enough expected mass: rare texts are pooled.
    common = [text for text, p in truth.items() if p * total >= 5]
    observed = [counts[text] for text in common]
    expected = [truth[text] * total for text in common]
    if (rest := total - sum(expected)) > 1e-9 * total:
        observed.append(total - sum(observed))
        expected.append(rest)
    if len(expected) > 1 and min(expected) > 0:
        scale = sum(observed) / sum(expected)
        statistic = stats.chisquare(observed, [e * scale for e in expected])
        assert statistic.pvalue > FALSE_ALARM
    distance = sum(abs(counts[text] / total - p) for text, p in truth.items()) / 2
    # E[TV] <= sqrt(cells / total) / 2, and by McDiarmid P(excess > t) <= exp(-2 total t^2).
    bound = math.sqrt(len(truth) / total) / 2 + math.sqrt(math.log(1 / FALSE_ALARM) / (2 * total))
    assert distance < bound


def test_the_target_as_its_own_draft_is_always_accepted() -> None:
    target = TableModel(5, seed=1)
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=0)
    engine = toy_engine(target, TableModel(5, seed=1))
    ((result,),) = engine.generate([PROMPT], [params], Speculative(gamma=4))
    assert result.statistics.draft_acceptance_rate == 1.0
    assert result.statistics.mean_acceptance_length == 5.0
    assert result.statistics.target_passes == 8
    assert set(result.provenance) == {"draft", "bonus"}


def test_greedy_neighbours_make_plain_decoding_win_and_change_no_text() -> None:
    """Rows that cost nothing alone cost a crowd much: where drafting loses nobody drafts."""
    steep = PairCosts(PassCosts({1: 1.0, 4: 1.0, 64: 16.0}), PassCosts({1: 0.2, 64: 3.0}))
    target, draft = (TableModel(5, seed=1, sharpness=9.0) for _ in range(2))
    prompts = [(i % 5, (i * 3) % 5) for i in range(32)]
    params = [SamplingParams(max_tokens=40)] * 32
    method = Speculative(gamma="auto")
    alone, crowded = (
        toy_engine(target, draft, batch, (), steep).generate(prompts, params, method)
        for batch in (1, 32)
    )
    assert [r.token_ids for (r,) in alone] == [r.token_ids for (r,) in crowded]
    assert all(r.statistics.num_draft_tokens >= 20 for (r,) in alone)
    assert all(r.statistics.num_draft_tokens < 5 for (r,) in crowded)


def test_sampled_texts_do_not_depend_on_the_crowd() -> None:
    steep = PairCosts(PassCosts({1: 1.0, 4: 1.0, 64: 16.0}), PassCosts({1: 0.2, 64: 3.0}))
    target, draft = TableModel(5, seed=1), TableModel(5, seed=2)
    prompts = [(i % 5, (i * 3) % 5) for i in range(16)]
    params = [SamplingParams(max_tokens=40, temperature=1.0, seed=i) for i in range(16)]
    for method in (Speculative(gamma="auto"), Speculative(gamma="auto", rescue="topk/k=2")):
        alone, crowded = (
            toy_engine(target, draft, batch, (), steep).generate(prompts, params, method)
            for batch in (1, 16)
        )
        assert [r.token_ids for (r,) in alone] == [r.token_ids for (r,) in crowded]


def test_statistics_count_only_what_stands() -> None:
    """Guards counting after truncation: drafts past the end are no accepted drafts."""
    target = TableModel(5, seed=1)
    engine = toy_engine(target, TableModel(5, seed=1))
    params = SamplingParams(max_tokens=6)
    ((result,),) = engine.generate([PROMPT], [params], Speculative(gamma=4))
    stats_ = result.statistics
    assert stats_.num_accepted_draft_tokens == result.provenance.count("draft") == 4
    assert len(result.token_ids) == len(result.logprobs) == len(result.provenance) == 6


@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        ({"gamma": 0}, ">= 1"),
        ({"gamma": 2.5}, "whole number"),
        ({"gamma": True}, "whole number"),
        ({"drafter": "eagle"}, "choose"),
        ({"chains": 0}, ">= 1"),
        ({"drafter": "ngram", "chains": 2}, "chains=1"),
        ({"confidence": 1.5}, "0 to 1"),
        ({"ngram": 1}, ">= 2"),
    ],
)
def test_bad_configurations_name_the_fix(fields: dict[str, object], fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        Speculative(**fields)  # type: ignore[arg-type]


def test_a_missing_draft_is_refused_before_any_work() -> None:
    engine = toy_engine(TableModel())
    with pytest.raises(UserError, match="needs a draft"):
        engine.submit(PROMPT, SamplingParams(), Speculative())
    assert not engine.busy


def _fields(params: SamplingParams) -> dict[str, object]:
    return {name: getattr(params, name) for name in params.__slots__}
