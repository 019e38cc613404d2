"""Speculative decoding: the draft speaks where the rule lets it.

With the exact rule (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, 2302.01318) the
output is distributed exactly as the target's own; at temperature 0 it is the target's own. The
other rules (`rules.catalogue`) trade that for speed or for quality.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeGuard

from antiphon.drafting.base import Drafter
from antiphon.drafting.length import BlockLength, FittedLength, FixedLength
from antiphon.drafting.model import DraftModel
from antiphon.drafting.ngram import NGram
from antiphon.drafting.pace import Pace
from antiphon.errors import UserError
from antiphon.methods.base import Models
from antiphon.methods.loop import chain_judge, exact_judge, speculate
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps, alone
from antiphon.rules.catalogue import rules


@dataclass(frozen=True, slots=True)
class Speculative:
    """Configuration.

    Attributes:
        gamma: draft tokens per round and chain, or "auto": as many as pay under the measured
            pass costs, by how sure the draft is and the acceptance seen so far.
        drafter: "model", or "ngram" (prompt lookup, no draft model).
        chains: independent chains per round, verified in one pass (multi-draft); exact rule.
        confidence: stop drafting where the draft's largest probability falls below this.
        adaedl: stop drafting where AdaEDL's bound of the acceptance falls below this.
        ngram: longest suffix that prompt lookup searches for.
        rule: base rule, as ``NAME`` or ``NAME/argument=value``, see `rules.catalogue`.
        rescue: what may keep a token the base rule refuses; "" is none.
        veto: what may refuse a token that was accepted; "" is none.
    """

    GUARANTEE: ClassVar[str] = "the output distribution is the target's (with the exact rule)"
    SOURCE: ClassVar[str] = "arXiv 2211.17192, 2302.01318; multi-draft: 2305.09781"

    gamma: int | Literal["auto"] = 4
    drafter: Literal["model", "ngram"] = "model"
    chains: int = 1
    confidence: float = 0.0
    adaedl: float = 0.0
    ngram: int = 4
    rule: str = "exact"
    rescue: str = ""
    veto: str = ""

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        if self.drafter not in ("model", "ngram"):
            raise UserError(f"drafter is {self.drafter!r}: choose 'model' or 'ngram'")
        check_chains(self.chains)
        if self.drafter == "ngram" and self.chains > 1:
            raise UserError("prompt lookup drafts one chain: use chains=1, or a draft model")
        for name in ("confidence", "adaedl"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise UserError(f"{name} is {value!r}: give a number, 0 to 1")
            if value and self.drafter == "ngram":
                raise UserError(f"prompt lookup has no probabilities: drop {name}")
        if not _is_int(self.ngram) or self.ngram < 2:
            raise UserError(f"ngram is {self.ngram!r}: give a whole number >= 2")
        rules(self.rule, self.rescue, self.veto)
        if self.chains > 1 and not self.exact:
            raise UserError("several chains are judged by the exact rule alone: use chains=1")

    @property
    def exact(self) -> bool:
        """Whether the exact rule alone decides."""
        return (self.rule, self.rescue, self.veto) == ("exact", "", "")

    def check(self, models: Models, params: SamplingParams) -> None:
        need_draft("speculative decoding", self.drafter, models)
        need_costs(self.gamma, models)

    def run(self, request: Request, models: Models) -> Steps[None]:
        if self.exact:
            judge = exact_judge(request)
        else:
            judge = chain_judge(request, rules(self.rule, self.rescue, self.veto))
        # Where texts depend on where blocks end, neighbours must have no say in that.
        company = request.company if self.exact and request.params.greedy else alone
        length = block_length(self.gamma, self.drafter, request.params, models, company)
        drafter = self._drafter(request, models, pace_of(length))
        return speculate(request, models.target, drafter, length, judge)

    def _drafter(self, request: Request, models: Models, pace: Pace | None) -> Drafter:
        if self.drafter == "ngram":
            vocabulary = models.target.vocab_size
            return NGram(self.ngram, grammar=request.params.grammar, vocabulary=vocabulary)
        assert models.draft is not None
        return DraftModel(
            models.draft,
            request,
            self.chains,
            self.confidence,
            self.adaedl,
            beliefs=not self.exact,
            pace=pace,
        )


def block_length(
    gamma: int | Literal["auto"],
    drafter: str,
    params: SamplingParams,
    models: Models,
    company: Callable[[], int] = alone,
) -> BlockLength:
    """The block length that a configuration asks for; `company`: see `FittedLength`."""
    if gamma != "auto":
        return FixedLength(gamma)
    assert models.costs is not None
    if drafter != "model":
        return FittedLength(replace(models.costs, draft=None), company=company)
    if models.profile is None:
        return Pace(FittedLength(models.costs, company=company))
    acceptance = models.profile.nearest(params.temperature).acceptance
    return Pace(FittedLength(models.costs, acceptance=acceptance, company=company))


def pace_of(length: BlockLength) -> Pace | None:
    """What ends a draft model's blocks where their length is left open."""
    return length if isinstance(length, Pace) else None


def check_gamma(gamma: object) -> None:
    """Raise UserError for a block length that cannot be."""
    if gamma != "auto" and (not isinstance(gamma, int) or isinstance(gamma, bool) or gamma < 1):
        raise UserError(f"gamma is {gamma!r}: give a whole number >= 1, or 'auto'")


def check_chains(chains: object) -> None:
    """Raise UserError for a number of chains that cannot be."""
    if not _is_int(chains) or chains < 1:
        raise UserError(f"chains is {chains!r}: give a whole number >= 1")


def need_draft(what: str, drafter: str, models: Models) -> None:
    """Raise UserError where a draft model is needed and there is none."""
    if drafter == "model" and models.draft is None:
        raise UserError(f"{what} needs a draft: give --draft PATH, --draft self or --draft ngram")


def need_costs(gamma: object, models: Models) -> None:
    """Raise UserError where pass costs are needed and were not measured."""
    if gamma == "auto" and models.costs is None:
        raise UserError("gamma 'auto' needs measured pass costs: make_engine(pair, costs=True)")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
