"""EASD and the rules through the whole engine: neutral settings, profiles, temperature 0."""

from __future__ import annotations

from functools import cache

import pytest
from tests.toys import TableModel, toy_engine

from antiphon.api import encode, make_engine
from antiphon.errors import UserError
from antiphon.lab import problems
from antiphon.methods import EASD, Autoregressive, Method, Speculative
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.params import SamplingParams

NEUTRAL = [
    EASD(veto_entropy=99.0),
    EASD(veto_entropy=99.0, penalty=1.0, overlap=0.0, top_n=1),
    Speculative(rule="lenience/l=1"),
    Speculative(rule="cactus/delta=0"),
    Speculative(rule="mentored/bound=0"),
    Speculative(rule="ears/a=0"),
    Speculative(rule="ensemble/w=0"),
    Speculative(rule="cascade/kind=chow/a=-2"),
    Speculative(rule="cascade/kind=diff/a=-2"),
    Speculative(rule="contrastive/a=0/b=0"),
    Speculative(rescue="fly/window=5"),
    Speculative(rescue="kl-judge/kl=-1"),
    Speculative(rescue="fuzzy/threshold=-1"),
    Speculative(veto="entropy/target=99/draft=99"),
]
GREEDY_ONLY = [
    Speculative(rule="lenience"),
    Speculative(rule="cactus"),
    Speculative(rule="mentored"),
    Speculative(rule="ears"),
    Speculative(rule="typical"),
    Speculative(rule="topk/k=1"),
    Speculative(rescue="topk/k=1"),
]
LOUD = [
    EASD(veto_entropy=0.3, overlap=0.3),
    Speculative(rule="cactus/delta=1"),
    Speculative(rule="typical", rescue="topk/k=3", veto="entropy/target=1/draft=1/overlap=0"),
    Speculative(rescue="fly/window=2"),
    Speculative(rule="mentored/bound=0.3"),
]


@pytest.mark.parametrize("method", NEUTRAL, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_neutral_rule_is_the_exact_rule_token_for_token(
    method: Method, temperature: float
) -> None:
    target, draft = TableModel(5, seed=1), TableModel(5, seed=2)
    prompts = [(i % 5, (i * 3) % 5) for i in range(20)]
    params = [SamplingParams(temperature=temperature, max_tokens=25, seed=i) for i in range(20)]
    exact = toy_engine(target, draft).generate(prompts, params, Speculative())
    other = toy_engine(target, draft).generate(prompts, params, method)
    for (a,), (b,) in zip(exact, other, strict=True):
        assert a.token_ids == b.token_ids
        assert [r.proposed for r in a.rounds] == [r.proposed for r in b.rounds]


@pytest.mark.parametrize("method", GREEDY_ONLY, ids=str)
def test_rules_that_are_exact_at_temperature_0(method: Method) -> None:
    target, draft = TableModel(5, seed=3), TableModel(5, seed=4)
    params = [SamplingParams(max_tokens=25)] * 8
    prompts = [(i % 5,) for i in range(8)]
    plain = toy_engine(target).generate(prompts, params, Autoregressive())
    other = toy_engine(target, draft).generate(prompts, params, method)
    assert [r.token_ids for (r,) in plain] == [r.token_ids for (r,) in other]


@pytest.mark.parametrize("method", LOUD, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_loud_rule_fires_and_depends_on_no_neighbour(method: Method, temperature: float) -> None:
    target, draft = TableModel(5, seed=5), TableModel(5, seed=6)
    prompts = [(i % 5, (i * 3) % 5) for i in range(12)]
    params = [SamplingParams(temperature=temperature, max_tokens=30, seed=i) for i in range(12)]
    alone = toy_engine(target, draft, batch=1).generate(prompts, params, method)
    many = toy_engine(target, draft, batch=12).generate(prompts, params, method)
    assert [r.token_ids for (r,) in alone] == [r.token_ids for (r,) in many]
    if temperature or not isinstance(method, Speculative) or method.rescue or method.veto:
        exact = toy_engine(target, draft).generate(prompts, params, Speculative())
        assert [r.token_ids for (r,) in alone] != [r.token_ids for (r,) in exact]


@cache
def pair() -> ModelPair:
    return load_pair(options=LoadOptions(dtype="float32"))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_on_the_lab_pair_neutral_rules_are_exact(temperature: float) -> None:
    """Fixed seeds: a false alarm would need a random number within 1e-6 of a boundary."""
    prompts = [encode(pair(), problem.question) for problem in problems("test")[:6]]
    params = [SamplingParams(temperature=temperature, max_tokens=60, seed=i) for i in range(6)]
    engine = make_engine(pair())
    exact = [r.token_ids for (r,) in engine.generate(prompts, params, Speculative())]
    for method in NEUTRAL:
        assert [r.token_ids for (r,) in engine.generate(prompts, params, method)] == exact


def test_easd_takes_its_bounds_from_the_profile_at_its_temperature() -> None:
    models = make_engine(pair()).models
    assert models.profile is not None
    cold, mild, hot = (EASD().veto(models, SamplingParams(temperature=t)) for t in (0.6, 0.65, 1))
    seen = models.profile.at(0.6)
    assert cold.target == pytest.approx(seen.quantile("target_entropy", 0.95))
    assert cold.draft == pytest.approx(seen.quantile("draft_entropy", 0.95))
    assert cold.target < mild.target < hot.target
    with pytest.raises(UserError, match=r"temperatures.*not 9.*--temperatures"):
        EASD().check(models, SamplingParams(temperature=9))


def test_easd_without_a_profile_names_the_fix() -> None:
    engine = toy_engine(TableModel(5, seed=1), TableModel(5, seed=2))
    with pytest.raises(UserError, match="antiphon calibrate"):
        engine.submit((1,), SamplingParams(), EASD())


def test_a_veto_that_always_fires_leaves_no_draft_token() -> None:
    engine = toy_engine(TableModel(5, seed=1), TableModel(5, seed=2))
    params = SamplingParams(temperature=1.0, max_tokens=30, seed=0)
    ((result,),) = engine.generate([(1, 2)], [params], EASD(veto_entropy=-1.0, overlap=0.0))
    assert result.statistics.num_accepted_draft_tokens == 0
    assert sum(r.notes.get("fired", 0) for r in result.rounds) > 0


@pytest.mark.parametrize("stop", [{"confidence": 1.0}, {"adaedl": 1.0}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_never_sure_enough_drafts_nothing(
    stop: dict[str, float], temperature: float
) -> None:
    engine = toy_engine(TableModel(5, seed=1), TableModel(5, seed=2))
    params = SamplingParams(temperature=temperature, max_tokens=20, seed=0)
    ((result,),) = engine.generate([(1, 2)], [params], Speculative(**stop))  # type: ignore[arg-type]
    assert result.statistics.num_draft_tokens == 0


def test_several_chains_are_for_the_exact_rule() -> None:
    with pytest.raises(UserError, match="chains=1"):
        Speculative(chains=2, rule="cactus")


@pytest.mark.parametrize(
    "fields",
    [{"quantile": 1.5}, {"overlap": -1}, {"penalty": 2}, {"top_n": 0}, {"gamma": 0}],
    ids=str,
)
def test_easd_refuses_what_cannot_be(fields: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(fields))):
        EASD(**fields)  # type: ignore[arg-type]
