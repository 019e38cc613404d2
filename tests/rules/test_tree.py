"""Rules over several chains: on one chain they are the chain's, and alone the exact rule's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from tests.bundled import run
from tests.toys import TableModel, toy_engine

from antiphon.drafting.length import FixedLength
from antiphon.drafting.model import DraftModel
from antiphon.errors import UserError
from antiphon.methods import CoSpec, Models, Speculative
from antiphon.methods.loop import chain_judge, speculate, tree_judge
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps
from antiphon.rules.catalogue import rules


@dataclass(frozen=True)
class Ruled:
    """Speculation under a rescue and a veto, judged as a chain or as a tree."""

    rescue: str
    veto: str
    tree: bool
    chains: int = 1

    def check(self, models: Models, params: SamplingParams) -> None:
        pass

    def run(self, request: Request, models: Models) -> Steps[None]:
        found = rules("exact", self.rescue, self.veto)
        assert models.draft is not None
        drafter = DraftModel(models.draft, request, self.chains, beliefs=True)
        judge = (
            tree_judge(request, found.rescue, found.veto)
            if self.tree
            else chain_judge(request, found)
        )
        return speculate(request, models.target, drafter, FixedLength(4), judge)


def toys(method: Any, temperature: float) -> list[Any]:
    target, draft = TableModel(5, seed=1), TableModel(5, seed=2)
    prompts = [(i % 5, (i * 3) % 5) for i in range(12)]
    params = [SamplingParams(temperature=temperature, max_tokens=25, seed=i) for i in range(12)]
    results = [r for (r,) in toy_engine(target, draft).generate(prompts, params, method)]
    assert not [r.error for r in results if r.error]
    return results


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("rescue", ["", "topk/k=2"])
@pytest.mark.parametrize("veto", ["", "entropy/target=0.5/draft=0.5/overlap=0"])
def test_on_one_chain_the_tree_judges_as_the_chain_does(
    temperature: float, rescue: str, veto: str
) -> None:
    chain = toys(Ruled(rescue, veto, tree=False), temperature)
    tree = toys(Ruled(rescue, veto, tree=True), temperature)
    assert [r.token_ids for r in tree] == [r.token_ids for r in chain]
    assert [r.provenance for r in tree] == [r.provenance for r in chain]
    fired = [sum(x.notes.get("fired", 0) for x in r.rounds) for r in chain]
    assert [sum(x.notes.get("fired", 0) for x in r.rounds) for r in tree] == fired
    assert (sum(fired) > 0) == bool(rescue or veto)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_an_arbiter_that_keeps_nothing_leaves_multi_draft_exact(temperature: float) -> None:
    exact = run(Speculative(chains=3), temperature=temperature)
    strict = run(CoSpec(chains=3, threshold=1.0), temperature=temperature)
    assert [r.token_ids for r in strict] == [r.token_ids for r in exact]


def test_an_arbiter_that_keeps_all_corrects_nothing() -> None:
    for result in run(CoSpec(chains=2, threshold=-1.0), temperature=0.7):
        assert "correction" not in result.provenance


def test_the_arbiter_looks_at_every_chain() -> None:
    """More chains draw more of what the target wants: fewer tokens are left to the arbiter."""
    one, two = (run(CoSpec(chains=chains)) for chains in (1, 2))
    fired = [sum(x.notes["fired"] for r in found for x in r.rounds) for found in (one, two)]
    assert 0 < fired[1] < fired[0]
    alone = run(CoSpec(chains=2), batch=1)
    assert [r.token_ids for r in alone] == [r.token_ids for r in two]


def test_a_veto_takes_back_what_stands() -> None:
    bare = run(CoSpec(threshold=-1.0), temperature=0.7)
    vetoed = run(CoSpec(threshold=-1.0, veto="entropy/target=0.3/draft=0.3"), temperature=0.7)
    assert {name for r in bare for name in r.provenance}.isdisjoint({"correction"})
    assert "correction" in {name for r in vetoed for name in r.provenance}
    never = CoSpec(threshold=-1.0, veto="entropy/target=99/draft=99")
    assert [r.token_ids for r in run(never, temperature=0.7)] == [r.token_ids for r in bare]
    with pytest.raises(UserError, match="veto is 'none'"):
        CoSpec(veto="none")
    with pytest.raises(UserError, match="chains is 0"):
        CoSpec(chains=0)
