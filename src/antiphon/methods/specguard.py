"""SpecGuard: whole steps are drafted, and verified by what the draft itself shows.

"From Tokens to Steps: Verification-Aware Speculative Decoding" (arXiv 2604.15244, Algorithm 1):
several candidates for a step, the most consistent one, accepted on grounding (ABGV) and
log-probability (LPBV), else written anew by the target.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

import torch

from antiphon.errors import UserError
from antiphon.methods.base import Models
from antiphon.methods.boundary import check_steps, seen_of_steps
from antiphon.methods.redo import Redo
from antiphon.methods.selection import medoid, numbers, vote
from antiphon.methods.speculative import need_costs
from antiphon.methods.steps import AGGREGATES, Candidate, Scored, StepWriter, aggregate, step_commit
from antiphon.models.base import Capture
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps
from antiphon.sampling import Context

SELECTORS = ("medoid", "text", "numbers")
RANGE = (0.01, 0.99)
"""The quantiles of the profile that scores are scaled to 0 and 1 by."""


GROUNDED_BY = ("layers", "threshold", "renormalise", "residual")
"""Fields that grounding scores depend on."""


@dataclass(frozen=True, slots=True)
class SpecGuard:
    """Configuration. The defaults are the paper's, where they are known.

    Attributes:
        candidates: k, drafted side by side; at temperature 0 they are equal, and one is enough.
        target_candidates: the same, where the target writes the step; 0: as many.
        beta: weight of the log-probability; grounding has the rest.
        tau: accept from this combined score on; 0 accepts every step, above 1 none.
        selector: "medoid" (mean hidden states of the draft), "text" or "numbers" (votes).
        aggregate: over a step's tokens: "min", "mean" or "p10".
        layers: of the attention rollout: the draft's last ones, all where it has fewer.
        threshold, renormalise, residual: see `models.base.Capture` and `methods.grounding`.
        gamma: draft tokens a round of exact speculation, where the target writes a step, one
            candidate then, or "auto"; 0: it writes token by token.
        boundary: what closes a step after some text: "blank-line" or "line".
        longest: tokens after which a step counts as complete.
        low_logprob, high_logprob, low_grounding, high_grounding: raw scores that count as 0 and
            1; None: the profile's 1 and 99 % quantiles.
    """

    GUARANTEE: ClassVar[str] = "none; tau > 1 is the target step by step"
    SOURCE: ClassVar[str] = "arXiv 2604.15244"

    candidates: int = 16
    target_candidates: int = 0
    beta: float = 0.3
    tau: float = 0.7
    selector: str = "medoid"
    aggregate: str = "min"
    layers: int = 3
    threshold: float = 0.01
    renormalise: bool = False
    residual: float = 0.0
    gamma: int | Literal["auto"] = 0
    boundary: str = "blank-line"
    longest: int = 256
    low_logprob: float | None = None
    high_logprob: float | None = None
    low_grounding: float | None = None
    high_grounding: float | None = None

    def __post_init__(self) -> None:
        check_steps(self.gamma, self.longest, self.boundary)
        if self.gamma and self.target_candidates > 1:
            raise UserError("with gamma the target writes one candidate: use target_candidates=1")
        for name, least in (("candidates", 1), ("target_candidates", 0), ("layers", 1)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                given = getattr(self, name)
                raise UserError(f"{name} is {given!r}: give a whole number >= {least}")
        if not 0 <= self.beta <= 1:
            raise UserError(f"beta is {self.beta!r}: give a weight, 0 to 1")
        if self.tau != self.tau:
            raise UserError("tau is not a number: give one")
        if self.selector not in SELECTORS:
            raise UserError(f"selector is {self.selector!r}: choose {', '.join(SELECTORS)}")
        if self.aggregate not in AGGREGATES:
            raise UserError(f"aggregate is {self.aggregate!r}: choose {', '.join(AGGREGATES)}")
        if not 0 <= self.threshold < 1 or not 0 <= self.residual < 1:
            raise UserError("threshold and residual are shares: give numbers from 0 to below 1")

    def check(self, models: Models, params: SamplingParams) -> None:
        if models.draft is None:
            raise UserError("specguard needs a draft model: give --draft PATH or --draft self")
        need_costs(self.gamma, models)
        self.ranges(models, params)
        if self.beta < 1 and not getattr(models.draft, "layers", 0):
            raise UserError("the draft shows no attention: use beta=1")

    def run(self, request: Request, models: Models) -> Steps[None]:
        assert models.draft is not None
        ranges = self.ranges(models, request.params)
        capture = None
        if self.beta < 1:
            layers = min(self.layers, getattr(models.draft, "layers", self.layers))
            capture = Capture(layers, self.threshold, self.renormalise)
        draft = StepWriter(
            models.draft, request, self.longest, self.boundary, capture, self.residual
        )
        target = StepWriter(models.target, request, self.longest, self.boundary)
        redo = Redo(target, draft, self.gamma, models)
        context, before = Context(request.prompt), ""
        while request.room(len(context.output)) > 0:
            # 1. The draft writes k candidates; the most consistent one is chosen.
            chosen = yield from self._write(draft, context, self.candidates)
            scored = yield from draft.score(context, chosen.tokens)

            # 2. Its two scores decide. A step that repeats the one before is no progress.
            score = self._score(scored, ranges)
            repeated = self.tau > 0 and chosen.text.strip() == before
            accepted = score >= self.tau and not repeated
            if accepted:
                draft.accept(scored)
                # The target has not read the step: what counts is the draft's own.
                chosen.judged = list(scored.judged)
            else:
                # 3. Refused: the target writes the step, and nobody verifies it.
                draft.drop()
                if self.gamma:
                    chosen = yield from redo.write(context)
                else:
                    count = self.target_candidates or self.candidates
                    chosen = yield from self._write(target, context, count)
                    target.keep(chosen)
            yield step_commit(chosen, accepted, score)
            context = context.then(chosen.tokens)
            before = chosen.text.strip()
            if chosen.tokens[-1] in draft.ends:
                return

    def _write(self, writer: StepWriter, context: Context, count: int) -> Steps[Candidate]:
        """Candidates of one model, and the selected one."""
        count = 1 if writer.request.params.greedy else count
        embed = self.selector == "medoid" and count > 2
        candidates = yield from writer.propose(context, count, embed)
        return candidates[select(self.selector, candidates)]

    def _score(self, scored: Scored, ranges: tuple[tuple[float, float], ...]) -> float:
        """Both scores scaled by their ranges and cut to 0 .. 1: beta l + (1 - beta) g."""
        (low_l, high_l), (low_g, high_g) = ranges
        total = self.beta * scaled(aggregate(self.aggregate, scored.logprobs), low_l, high_l)
        if scored.grounding is not None:
            value = aggregate(self.aggregate, scored.grounding)
            total += (1 - self.beta) * scaled(value, low_g, high_g)
        return total

    def ranges(
        self, models: Models, params: SamplingParams
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """The raw scores that count as 0 and 1, of log-probability and grounding.

        Raises UserError where neither the configuration nor a profile has them.
        """
        found = []
        for short, name, needed in (
            ("logprob", "draft_step_min_logprob", self.beta > 0),
            ("grounding", "draft_step_min_grounding", self.beta < 1),
        ):
            low, high = getattr(self, f"low_{short}"), getattr(self, f"high_{short}")
            if needed and (low is None or high is None):
                if models.profile is None:
                    raise UserError(
                        "specguard needs the range of its scores: make a profile with antiphon "
                        f"calibrate and give --profile FILE, or give low_{short} and high_{short}"
                    )
                self._refuse_other_scores(short)
                seen = seen_of_steps(models.profile, params.temperature, self.boundary)
                low = seen.quantile(name, RANGE[0]) if low is None else low
                high = seen.quantile(name, RANGE[1]) if high is None else high
            if low is not None and high is not None and not low < high:
                raise UserError(f"low_{short} is {low} and high_{short} {high}: give a range")
            found.append((low or 0.0, 1.0 if high is None else high))
        return found[0], found[1]

    def _refuse_other_scores(self, short: str) -> None:
        """A profile's ranges are of scores as they are made by default."""
        makers = ["aggregate", *(GROUNDED_BY if short == "grounding" else ())]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in makers and value != field.default:
                raise UserError(
                    f"the profile's ranges are of {field.name}={field.default}: with "
                    f"{field.name}={value} give low_{short} and high_{short}"
                )


def select(selector: str, candidates: list[Candidate]) -> int:
    """The index of the most consistent candidate."""
    if len(candidates) == 1:
        return 0
    if selector == "medoid":
        # A candidate of one token was never read: it has no state, and resembles nobody.
        states = [candidate.sums for candidate in candidates]
        like = next((state for state in states if state is not None), None)
        if like is None:
            return 0
        filled = [torch.zeros_like(like) if state is None else state for state in states]
        return medoid(torch.stack(filled))
    if selector == "text":
        return vote([candidate.text.strip() for candidate in candidates])
    return vote([numbers(candidate.text) for candidate in candidates])


def scaled(value: float, low: float, high: float) -> float:
    """`value` with `low` at 0 and `high` at 1, cut to that range."""
    if high <= low:
        return 1.0 if value >= high else 0.0
    return min(max((value - low) / (high - low), 0.0), 1.0)
