"""Entropy-aware speculative decoding (EASD): the exact rule, and a veto on shared uncertainty.

Su, Zhang and He, "Entropy-Aware Token Rejection for Improving Speculative Decoding" (arXiv
2512.23765, Eqs. 1, 4 and 5). The rule itself is `rules.entropy_veto`; this method takes its
thresholds from the pair's profile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from antiphon.drafting.model import DraftModel
from antiphon.errors import UserError
from antiphon.methods.base import Models
from antiphon.methods.loop import chain_judge, speculate
from antiphon.methods.speculative import (
    block_length,
    check_gamma,
    need_costs,
    need_draft,
    pace_of,
)
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps
from antiphon.rules.entropy_veto import EntropyVeto
from antiphon.rules.exact import Exact
from antiphon.rules.judge import Rules


@dataclass(frozen=True, slots=True)
class EASD:
    """Configuration.

    Attributes:
        gamma: draft tokens per round, or "auto".
        quantile: the bounds on both entropies, as quantiles of what the profile saw at this
            temperature; 0 to 1.
        veto_entropy: one bound for both in nats, in place of the quantiles; above log V the
            veto never fires.
        top_n, overlap, penalty, spare: see `rules.entropy_veto`.
    """

    GUARANTEE: ClassVar[str] = "none; veto_entropy above log V is exact"
    SOURCE: ClassVar[str] = "arXiv 2512.23765"

    gamma: int | Literal["auto"] = 4
    quantile: float = 0.95
    veto_entropy: float | None = None
    top_n: int = 10
    overlap: float = 0.8
    penalty: float = 0.0
    spare: bool = False

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if not 0 <= self.quantile <= 1:
            raise UserError(f"quantile is {self.quantile!r}: give a share, 0 to 1")
        self._veto(0.0, 0.0)

    def check(self, models: Models, params: SamplingParams) -> None:
        need_draft("easd", "model", models)
        need_costs(self.gamma, models)
        self.veto(models, params)

    def run(self, request: Request, models: Models) -> Steps[None]:
        assert models.draft is not None
        rules = Rules(Exact(), veto=self.veto(models, request.params))
        length = block_length(self.gamma, "model", request.params, models)
        drafter = DraftModel(models.draft, request, beliefs=True, pace=pace_of(length))
        judge = chain_judge(request, rules)
        return speculate(request, models.target, drafter, length, judge)

    def veto(self, models: Models, params: SamplingParams) -> EntropyVeto:
        """The veto with its bounds; raises UserError where the profile has none."""
        if self.veto_entropy is not None:
            return self._veto(self.veto_entropy, self.veto_entropy)
        if models.profile is None:
            raise UserError(
                "easd needs the pair's entropies: make a profile with antiphon calibrate and "
                "give --profile FILE, or give veto_entropy in nats"
            )
        seen = models.profile.at(params.temperature)
        return self._veto(
            seen.quantile("target_entropy", self.quantile),
            seen.quantile("draft_entropy", self.quantile),
        )

    def _veto(self, target: float, draft: float) -> EntropyVeto:
        return EntropyVeto(target, draft, self.top_n, self.overlap, self.penalty, self.spare)
