"""SMC-SD's laws, on toy models whose every text can be enumerated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.toys import TableModel, exact_outputs, toy_engine

from antiphon.costs import PairCosts, PassCosts
from antiphon.drafting.sizes import FEWEST_PARTICLES, MOST_PARTICLES
from antiphon.errors import UserError
from antiphon.methods import SMC, Method, Models
from antiphon.params import SamplingParams
from antiphon.result import Result


class Near(TableModel):
    """A draft whose logits are mostly another table's: a block's weights vary, but not wildly."""

    def logits_after(self, text: Sequence[int]) -> torch.Tensor:
        own = super().logits_after(text)
        return 0.75 * TARGET.logits_after(text) + 0.25 * own


TARGET = TableModel(3, seed=11)
FAR = TableModel(3, seed=12)
PROMPT = (1, 0, 2)
WARM = {"temperature": 1.0}


def run(
    method: Method,
    runs: int,
    length: int = 4,
    draft: TableModel | None = None,
    eos: tuple[int, ...] = (),
    **fields: Any,
) -> list[Result]:
    draft = draft or Near(3, seed=12)
    params = SamplingParams(**{**WARM, "max_tokens": length, "seed": 5, "n": runs, **fields})
    (results,) = toy_engine(TARGET, draft, 64, eos=eos).generate([PROMPT], [params], method)
    assert not [result.error for result in results if result.error]
    return results


def last_notes(result: Result) -> dict[str, Any]:
    return dict(result.rounds[-1].notes)


def distance(results: list[Result], truth: dict[tuple[int, ...], float]) -> float:
    counts = Counter(result.token_ids for result in results)
    texts = set(counts) | set(truth)
    return sum(abs(counts[t] / len(results) - truth.get(t, 0.0)) for t in texts) / 2


def test_the_target_as_its_own_draft_never_changes_a_weight() -> None:
    results = run(SMC(particles=6, gamma=3), runs=20, length=13, draft=TableModel(3, seed=11))
    for result in results:
        notes = last_notes(result)
        assert sum(r.notes["fired"] for r in result.rounds) == 0
        assert notes["mean_ess"] == pytest.approx(6)
        assert (notes["resamples"], notes["ancestry"]) == (0, [])
        assert notes["log_z"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_the_estimate_of_z_is_one_on_average(threshold: float) -> None:
    """Mean of 1,000 estimates within 5 standard errors of 1: false alarm below 1e-5."""
    results = run(SMC(particles=4, gamma=2, threshold=threshold), runs=1000, length=6)
    z = np.exp([last_notes(result)["log_z"] for result in results])
    assert abs(z.mean() - 1) < 5 * z.std(ddof=1) / np.sqrt(len(z))


def test_the_error_falls_with_n() -> None:
    """Total variation to the enumerated target, with a draft that is far from it."""
    truth = exact_outputs(TARGET, PROMPT, SamplingParams(**WARM, max_tokens=4))
    errors = [
        distance(run(SMC(particles=n, gamma=3, threshold=0.5), runs=700, draft=FAR), truth)
        for n in (1, 4, 32)
    ]
    # They are about 0.8, 0.6 and 0.3; two texts of 700 samples differ by 0.16 at the very most.
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.6 * errors[0]


def test_one_particle_is_the_draft_with_the_targets_bonus_tokens() -> None:
    truth: dict[tuple[int, ...], float] = {}
    draft = Near(3, seed=12)
    models = [draft, draft, TARGET, TARGET]
    # Four tokens with gamma 2: two of the draft and one of the target; the room that is left
    # then holds one token, and the last token of a round is the target's.

    def walk(text: tuple[int, ...], chance: float) -> None:
        if len(text) == 4:
            truth[text] = chance
            return
        row = models[len(text)].logits_after((*PROMPT, *text)).softmax(-1)
        for token in range(3):
            walk((*text, token), chance * float(row[token]))

    walk((), 1.0)
    results = run(SMC(particles=1, gamma=2), runs=2000)
    # E[TV] <= sqrt(81 / 2000) / 2 = 0.101, and P(excess > 0.06) < 1e-6 (McDiarmid).
    assert distance(results, truth) < 0.101 + 0.06


@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize(
    "scheme", ["systematic", "stratified", "residual", "multinomial", "killing"]
)
def test_every_scheme_is_near_the_target(scheme: str, guided: bool) -> None:
    truth = exact_outputs(TARGET, PROMPT, SamplingParams(**WARM, max_tokens=4))
    method = SMC(particles=16, gamma=3, scheme=scheme, guided=guided)
    # E[TV] <= sqrt(81 / 400) / 2 = 0.225, P(excess > 0.12) < 1e-5; the draft alone is at 0.3.
    assert distance(run(method, runs=400), truth) < 0.225 + 0.12


BETWEEN: list[dict[str, Any]] = [
    {"control": 0.5},
    {"control": 1.0},
    {"exact": 2},
    {"exact": "need"},
    {"control": 0.3, "exact": 3},
    {"enough": 3},
    {"enough": 4, "control": 0.5},
]
"""What lies between SMC-SD and exact speculation, and populations of changing size."""


@pytest.mark.parametrize("fields", BETWEEN)
def test_what_lies_between_is_properly_weighted(fields: dict[str, Any]) -> None:
    """E[Z] = 1 within 5 standard errors (false alarm below 1e-5), and the text is near p."""
    results = run(SMC(particles=8, gamma=3, **fields), runs=1000)
    z = np.exp([last_notes(result)["log_z"] for result in results])
    assert abs(z.mean() - 1) <= 5 * z.std(ddof=1) / np.sqrt(len(z)) + 1e-9
    truth = exact_outputs(TARGET, PROMPT, SamplingParams(**WARM, max_tokens=4))
    # E[TV] <= sqrt(81 / 1000) / 2 = 0.143; then the error of eight particles, and chance,
    # P(excess > 0.085) < 1e-6. The draft alone is at 0.3.
    assert distance(results, truth) < 0.143 + 0.03 + 0.085


@pytest.mark.parametrize("particles", [1, 4])
@pytest.mark.parametrize("fields", [{"control": 1.0}, {"exact": 1}])
def test_full_control_is_exact_speculation(particles: int, fields: dict[str, Any]) -> None:
    method = SMC(particles=particles, gamma=3, **fields)
    results = run(method, runs=2000, draft=FAR)
    assert {last_notes(result)["log_z"] for result in results} == {0.0}
    assert not any(r.notes["fired"] for result in results for r in result.rounds)
    truth = exact_outputs(TARGET, PROMPT, SamplingParams(**WARM, max_tokens=4))
    # E[TV] <= sqrt(81 / 2000) / 2 = 0.101, and P(excess > 0.06) < 1e-6 (McDiarmid).
    assert distance(results, truth) < 0.101 + 0.06
    assert any("correction" in result.provenance for result in results)


def test_control_draws_from_its_formula() -> None:
    """One token, one particle: P(x) = min(q, p / c) + R (p - q)+ / D, and w = p / P(x)."""
    c = 0.4
    p, q = (m.logits_after(PROMPT).softmax(-1).double() for m in (TARGET, FAR))
    deficit = (p - q).clamp_min(0)
    kept = torch.minimum(q, p / c)
    formula = kept + (1 - kept.sum()) * deficit / deficit.sum()
    # A round's last token is the target's: of a text of two, the first is a draft's.
    results = run(SMC(particles=1, gamma=1, control=c), runs=4000, length=2, draft=FAR)
    counts = Counter(result.token_ids[0] for result in results)
    for token in range(3):
        expected = float(formula[token])
        # Five and a half standard errors: false alarm below 1e-7 a token.
        slack = 5.5 * np.sqrt(expected * (1 - expected) / len(results))
        assert abs(counts[token] / len(results) - expected) < slack
    for result in results[:50]:
        first = result.token_ids[0]
        log_w = float((p[first] / formula[first]).log())
        assert last_notes(result)["log_z"] == pytest.approx(log_w, abs=1e-5)


def test_control_bounds_every_factor_of_a_weight() -> None:
    results = run(SMC(particles=1, gamma=3, control=0.6), runs=200, length=4, draft=FAR)
    for result in results:
        drafted = sum(who != "bonus" for who in result.provenance)
        assert last_notes(result)["log_z"] >= drafted * np.log(0.6) - 1e-5


def test_a_population_shrinks_where_all_agree_and_grows_where_they_part() -> None:
    agreeing = run(SMC(particles=16, gamma=3, enough=2), 5, 40, draft=TableModel(3, seed=11))
    for result in agreeing:
        assert len(last_notes(result)["particles"]) == 2
        assert last_notes(result)["mean_particles"] < 6
    parting = run(SMC(particles=16, gamma=6, enough=8), 5, 40, draft=FAR)
    assert all(last_notes(result)["mean_particles"] > 14 for result in parting)


def test_slots_are_those_of_the_tree_and_of_separate_texts() -> None:
    (result,) = run(SMC(particles=4, gamma=3), runs=1, length=4)
    notes = last_notes(result)
    # One round: every text reads the prompt and three drafted tokens.
    assert notes["slots_apart"] == 4 * (len(PROMPT) + 3)
    assert len(PROMPT) + 3 <= notes["slots"] <= len(PROMPT) + 4 * 3


def test_power_sharpens_the_target() -> None:
    """p^2 over whole texts, by enumeration."""
    truth = exact_outputs(TARGET, PROMPT, SamplingParams(**WARM, max_tokens=4))
    total = sum(chance**2 for chance in truth.values())
    sharp = {text: chance**2 / total for text, chance in truth.items()}
    results = run(SMC(particles=32, gamma=1, power=2.0), runs=400)
    assert distance(results, sharp) < 0.225 + 0.12
    assert distance(results, truth) > distance(results, sharp)


def test_a_potential_is_part_of_the_target() -> None:
    """P exp(psi) over whole texts by enumeration; E[Z] is the mean of exp(psi) under p."""
    truth = exact_outputs(TARGET, PROMPT, SamplingParams(**WARM, max_tokens=4))

    def text(tokens: tuple[int, ...]) -> str:
        return "".join("abc"[token] for token in tokens)

    def psi(written: str) -> float:
        return -np.inf if "cc" in written else 0.7 * written.count("a")

    masses = {tokens: chance * np.exp(psi(text(tokens))) for tokens, chance in truth.items()}
    z = sum(masses.values())
    results = run(SMC(particles=32, gamma=1, potential=psi), runs=400)
    assert not any("cc" in result.text for result in results)
    # As for `power`: E[TV] <= 0.225, P(excess > 0.12) < 1e-5.
    aim = {tokens: mass / z for tokens, mass in masses.items() if mass}
    assert distance(results, aim) < 0.225 + 0.12
    assert distance(results, truth) > distance(results, aim)
    found = np.exp([last_notes(result)["log_z"] for result in results])
    assert abs(found.mean() - z) < 5 * found.std(ddof=1) / np.sqrt(len(found))


def test_a_potential_that_nothing_meets_leaves_some_text() -> None:
    (result,) = run(SMC(particles=4, gamma=2, potential=lambda _: -np.inf), runs=1)
    assert len(result.token_ids) == 4
    assert last_notes(result)["log_z"] is None


def test_texts_that_end_early_end_as_often_as_the_targets() -> None:
    params = SamplingParams(**WARM, max_tokens=5)
    truth = exact_outputs(TARGET, PROMPT, params, eos=(2,))
    results = run(SMC(particles=16, gamma=3), runs=400, length=5, eos=(2,))
    assert distance(results, truth) < 0.225 + 0.12
    for result in results:
        assert result.finish_reason == ("stop" if result.token_ids[-1] == 2 else "length")
        assert 2 not in result.token_ids[:-1]


@pytest.mark.parametrize("fields", [{}, {"guided": True}, *BETWEEN])
def test_results_depend_on_seed_alone(fields: dict[str, Any]) -> None:
    target, draft = TableModel(5, seed=1), TableModel(5, seed=2)
    method = SMC(particles=5, gamma=3, **fields)
    prompts = [(i % 5, (i * 3) % 5) for i in range(10)]
    params = [SamplingParams(temperature=0.9, max_tokens=4 + 3 * i, seed=i) for i in range(10)]
    alone = toy_engine(target, draft, batch=1).generate(prompts, params, method)
    many = toy_engine(target, draft, batch=10).generate(prompts, params, method)
    for (a,), (b,) in zip(alone, many, strict=True):
        assert a.error is None
        assert a.token_ids == b.token_ids
        assert len(a.token_ids) == len(a.logprobs) == len(a.provenance)
        assert last_notes(a) == last_notes(b)


def test_logprobs_are_the_targets_and_rounds_hold_every_token() -> None:
    target, draft = TableModel(5, seed=1), TableModel(5, seed=2)
    params = SamplingParams(temperature=0.8, max_tokens=20, seed=3, logprobs=2)
    ((result,),) = toy_engine(target, draft).generate([PROMPT], [params], SMC(particles=4, gamma=3))
    text = list(PROMPT)
    assert result.top_logprobs is not None
    for token, score, top in zip(
        result.token_ids, result.logprobs, result.top_logprobs, strict=True
    ):
        row = target.logits_after(text).log_softmax(-1)
        assert score == pytest.approx(float(row[token]), abs=1e-5)
        assert len(top) == 2
        text.append(token)
    committed = [token for r in result.rounds for token in r.committed]
    assert tuple(committed) == result.token_ids
    assert set(result.provenance) <= {"draft", "bonus"}


def test_passes_are_gamma_and_one_a_round() -> None:
    results = run(SMC(particles=4, gamma=3), runs=3, length=12)
    for result in results:
        assert result.statistics.target_passes == 3
        assert result.statistics.draft_passes == 9


def test_penalties_and_truncation_reach_both_models_alike() -> None:
    """The target as its own draft: any step of the pipeline in one model only shows in a weight."""
    fields = {"top_k": 2, "repetition_penalty": 1.3, "presence_penalty": 0.5}
    truth = exact_outputs(TARGET, PROMPT, SamplingParams(**WARM, max_tokens=4, **fields))
    results = run(SMC(particles=4, gamma=2), runs=60, draft=TableModel(3, seed=11), **fields)
    assert {result.token_ids for result in results} <= set(truth)
    assert all(last_notes(r)["log_z"] == pytest.approx(0, abs=1e-6) for r in results)


def test_the_vote_returns_the_heaviest_particle_of_the_heaviest_answer() -> None:
    voted = run(SMC(particles=6, gamma=2, threshold=0, output="vote"), runs=20, length=5)
    for result in voted:
        particles = last_notes(result)["particles"]
        weights: Counter[tuple[int, ...]] = Counter()
        for particle in particles:  # Toy texts hold no numbers: an answer is the whole text.
            weights[tuple(particle["tokens"])] += particle["weight"]
        assert weights[result.token_ids] == max(weights.values())


def test_the_ancestry_says_who_was_copied() -> None:
    """Places with one parent in the last resampling, which ends the text, hold one text."""
    told = 0
    for result in run(SMC(particles=6, gamma=2, threshold=1.0), runs=20, length=5):
        notes = last_notes(result)
        assert notes["resamples"] == len(notes["ancestry"])
        assert notes["resamples"] == sum(r.notes["fired"] for r in result.rounds)
        assert all(len(parents) == 6 for parents in notes["ancestry"])
        texts: dict[int, set[tuple[int, ...]]] = {}
        for parent, particle in zip(notes["ancestry"][-1], notes["particles"], strict=True):
            texts.setdefault(parent, set()).add(tuple(particle["tokens"]))
        assert all(len(found) == 1 for found in texts.values())
        told += len(texts) < 6
    assert told > 0


def test_automatic_sizes_need_costs_and_follow_them() -> None:
    flat = PassCosts({1: 1.0, 64: 1.0})
    steep = PassCosts({1: 1.0, 64: 64.0})
    draft = PassCosts({1: 0.1, 64: 0.1})
    models = Models(TARGET, Near(3, seed=12))
    method = SMC(particles="auto", gamma="auto")
    with pytest.raises(UserError, match="costs=True"):
        method.check(models, SamplingParams(**WARM))
    free, _ = method.sizes(replace(models, costs=PairCosts(flat, draft)))
    dear, _ = method.sizes(replace(models, costs=PairCosts(steep, draft)))
    assert (free, dear) == (MOST_PARTICLES, FEWEST_PARTICLES)
    assert SMC(particles=3, gamma=5).sizes(models) == (3, 5)


@pytest.mark.parametrize(
    ("fields", "fix"),
    [
        ({"particles": 0}, "particles"),
        ({"gamma": 0}, "gamma"),
        ({"threshold": 2}, "threshold"),
        ({"scheme": "odd"}, "systematic"),
        ({"draft_temperature": 0}, "draft_temperature"),
        ({"power": 0}, "power"),
        ({"output": "odd"}, "sample, max, vote"),
        ({"control": 1.5}, "control"),
        ({"control": 0.5, "guided": True}, "one of them"),
        ({"exact": -1}, "exact"),
        ({"enough": 9}, "enough"),
        ({"enough": 2, "scheme": "killing"}, "killing"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], fix: str) -> None:
    with pytest.raises(UserError, match=fix):
        SMC(**fields)


def test_greedy_and_draftless_requests_are_refused() -> None:
    engine = toy_engine(TableModel(3, seed=1), TableModel(3, seed=2))
    with pytest.raises(UserError, match="--temperature"):
        engine.submit((1,), SamplingParams(), SMC())
    with pytest.raises(UserError, match="--draft"):
        toy_engine(TableModel(3, seed=1)).submit((1,), SamplingParams(**WARM), SMC())
