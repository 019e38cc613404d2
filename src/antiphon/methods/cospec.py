"""CoSpec: at a mismatch a learned arbiter decides whose token stands.

"CoSpec" (arXiv 2605.24793): exact-match speculative decoding takes the target to be right
wherever the models differ; often enough the draft's token is the one that leads to the correct
answer. The arbiter is trained to tell, see `arbiter`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from antiphon.drafting.model import DraftModel
from antiphon.drawing import Randomness
from antiphon.errors import UserError
from antiphon.lab import is_bundled, pair_path
from antiphon.methods.base import Models
from antiphon.methods.loop import Judge, chain_judge, speculate, tree_judge
from antiphon.methods.speculative import (
    block_length,
    check_chains,
    check_gamma,
    need_costs,
    need_draft,
    pace_of,
)
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps
from antiphon.rules.arbiter import Arbiter
from antiphon.rules.catalogue import rules
from antiphon.rules.evidence import Evidence
from antiphon.rules.exact import Exact
from antiphon.rules.judge import Rules

if TYPE_CHECKING:  # Brings the Hub's client, which takes longer to import than the methods.
    from antiphon.arbiter.policy import Policy


@dataclass(frozen=True, slots=True)
class CoSpec:
    """Configuration.

    Attributes:
        arbiter: folder of a trained policy (`antiphon train-arbiter`); "": the bundled pair's.
        gamma: draft tokens per round, or "auto".
        threshold: keep a refused draft token where the policy's chance exceeds this; 1 is exact
            speculative decoding, below 0 every draft token is kept.
        chains: independent chains per round, verified in one pass (multi-draft). Where the exact
            rule refuses what all of them drew, the arbiter may keep one of the tokens.
        veto: what may refuse a token that stands, as ``NAME/argument=value``, see
            `rules.catalogue`; "" is none.
    """

    GUARANTEE: ClassVar[str] = "none; threshold 1 is exact"
    SOURCE: ClassVar[str] = "arXiv 2605.24793"

    arbiter: str = ""
    gamma: int | Literal["auto"] = 4
    threshold: float = 0.6
    chains: int = 1
    veto: str = ""

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if self.threshold != self.threshold:
            raise UserError("threshold is not a number: give one")
        check_chains(self.chains)
        rules("exact", veto=self.veto)

    def check(self, models: Models, params: SamplingParams) -> None:
        need_draft("cospec", "model", models)
        need_costs(self.gamma, models)
        self._policy(models)

    def run(self, request: Request, models: Models) -> Steps[None]:
        arbiter = Arbiter(self._policy(models), self.threshold)
        veto = rules("exact", veto=self.veto).veto
        if self.chains == 1:
            judge = chain_judge(request, Rules(Exact(), arbiter, veto))
        else:
            judge = tree_judge(request, arbiter, veto)
        return arbitrate(request, models, self.gamma, arbiter, judge, self.chains)

    def _policy(self, models: Models) -> Policy:
        if not self.arbiter and not is_bundled(models.pair):
            raise UserError(
                "cospec needs a trained arbiter: make one with antiphon train-arbiter, and give "
                "--method cospec:arbiter=FOLDER (the bundled pair alone has its own)"
            )
        return _loaded(self.arbiter or str(pair_path("arbiter")), models.pair)


@dataclass(frozen=True, slots=True)
class Rollout:
    """Training's method: decisions are drawn by the policy's chances and told, one by one.

    Attributes:
        policy: the one in training.
        hear: is told the request's seed, the features ``[F]`` and whether the token was kept.
    """

    policy: Policy
    hear: Callable[[int, torch.Tensor, bool], None]
    gamma: int = 4

    def check(self, models: Models, params: SamplingParams) -> None:
        need_draft("cospec", "model", models)

    def run(self, request: Request, models: Models) -> Steps[None]:
        # A stream of its own: the texts' lots must not depend on how many decisions came before.
        lots = Randomness(request.randomness.seed, index=2**31)
        seed = request.randomness.seed

        def asked(evidence: Evidence, k: int, kept: bool) -> None:
            self.hear(seed, self.policy.look(evidence)[k], kept)

        arbiter = Arbiter(self.policy, lots=lots)
        judge = chain_judge(request, Rules(Exact(), arbiter), asked)
        return arbitrate(request, models, self.gamma, arbiter, judge)


@dataclass(frozen=True, slots=True)
class Fixed:
    """CoSpec with a policy at hand, which need not have been saved."""

    policy: Policy
    threshold: float = 0.5
    gamma: int = 4

    def check(self, models: Models, params: SamplingParams) -> None:
        need_draft("cospec", "model", models)

    def run(self, request: Request, models: Models) -> Steps[None]:
        arbiter = Arbiter(self.policy, self.threshold)
        judge = chain_judge(request, Rules(Exact(), arbiter))
        return arbitrate(request, models, self.gamma, arbiter, judge)


def arbitrate(
    request: Request,
    models: Models,
    gamma: int | Literal["auto"],
    arbiter: Arbiter,
    judge: Judge,
    chains: int = 1,
) -> Steps[None]:
    """Speculative decoding where an arbiter sees all that it looks at."""
    assert models.draft is not None
    length = block_length(gamma, "model", request.params, models)
    drafter = DraftModel(models.draft, request, chains, beliefs=True, pace=pace_of(length))
    return speculate(request, models.target, drafter, length, judge, arbiter.policy.states > 0)


@lru_cache(maxsize=8)
def _loaded(path: str, pair: str | None) -> Policy:
    from antiphon.arbiter.policy import load

    return load(Path(path).expanduser(), pair)
