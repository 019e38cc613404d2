"""Steps scored by the target: best of k drafted steps, by the target's own log-probabilities.

Ours. SpecGuard asks the draft whether its step is right; on the bundled pair that signal is weak
(docs/methods/specguard.md), while the smallest log-probability the *target* gives a step's tokens
tells right steps from wrong ones best of all. It costs one target pass for all candidates of a
step, where writing the step takes a pass a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from antiphon.errors import UserError
from antiphon.methods.base import Models
from antiphon.methods.boundary import check_steps, seen_of_steps
from antiphon.methods.redo import Redo
from antiphon.methods.speculative import need_costs
from antiphon.methods.steps import AGGREGATES, StepWriter, aggregate, step_commit
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps
from antiphon.sampling import Context


@dataclass(frozen=True, slots=True)
class StepScore:
    """Configuration.

    Attributes:
        candidates: k, drafted side by side; at temperature 0 they are equal, and one is enough.
        quantile: accept the best candidate if it scores at least what this share of the target's
            own steps fall below, by the pair's profile at this temperature.
        threshold: the score itself, in nats, in place of the quantile; `-inf` accepts every
            step, above 0 none.
        aggregate: a step's score, over its tokens' log-probabilities: "min", "mean" or "p10".
        gamma: draft tokens a round of exact speculation, where the target writes a step, or
            "auto"; 0: it writes token by token.
        boundary: what closes a step after some text: "blank-line" or "line".
        longest: tokens after which a step counts as complete.
    """

    GUARANTEE: ClassVar[str] = "none; threshold > 0 is the target step by step"
    SOURCE: ClassVar[str] = "ours; see docs/methods/stepscore.md"

    candidates: int = 4
    quantile: float = 0.1
    threshold: float | None = None
    aggregate: str = "min"
    gamma: int | Literal["auto"] = 0
    boundary: str = "blank-line"
    longest: int = 256

    def __post_init__(self) -> None:
        check_steps(self.gamma, self.longest, self.boundary)
        if type(self.candidates) is not int or self.candidates < 1:
            raise UserError(f"candidates is {self.candidates!r}: give a whole number >= 1")
        if not 0 <= self.quantile <= 1:
            raise UserError(f"quantile is {self.quantile!r}: give a share, 0 to 1")
        if self.threshold is not None and self.threshold != self.threshold:
            raise UserError("threshold is not a number: give one, in nats")
        if self.aggregate not in AGGREGATES:
            raise UserError(f"aggregate is {self.aggregate!r}: choose {', '.join(AGGREGATES)}")

    def check(self, models: Models, params: SamplingParams) -> None:
        if models.draft is None:
            raise UserError("stepscore needs a draft model: give --draft PATH or --draft self")
        need_costs(self.gamma, models)
        self.bar(models, params)

    def run(self, request: Request, models: Models) -> Steps[None]:
        assert models.draft is not None
        bar = self.bar(models, request.params)
        draft = StepWriter(models.draft, request, self.longest, self.boundary)
        target = StepWriter(models.target, request, self.longest, self.boundary)
        redo = Redo(target, draft, self.gamma, models)
        count = 1 if request.params.greedy else self.candidates
        context = Context(request.prompt)
        while request.room(len(context.output)) > 0:
            # 1. The draft writes k candidates.
            candidates = yield from draft.propose(context, count)

            # 2. The target reads them all in one pass; the best one is chosen.
            scored = yield from target.score_all(context, candidates)
            scores = [aggregate(self.aggregate, each.logprobs) for each in scored]
            best = max(range(count), key=lambda i: (scores[i], -i))
            accepted = scores[best] >= bar

            # 3. What is not good enough the target writes.
            found = scored[best] if accepted else None
            step = yield from redo.settle(context, candidates[best], found)
            yield step_commit(step, accepted, scores[best])
            context = context.then(step.tokens)
            if step.tokens[-1] in draft.ends:
                return

    def bar(self, models: Models, params: SamplingParams) -> float:
        """The least score of a step that stands; raises UserError where it is not known."""
        if self.threshold is not None:
            return self.threshold
        if models.profile is None:
            raise UserError(
                "stepscore needs the scores of the target's own steps: make a profile with "
                "antiphon calibrate and give --profile FILE, or give threshold in nats"
            )
        if self.aggregate == "p10":
            raise UserError("a profile has no p10 of steps: give threshold in nats")
        kind = "step_mean_logprob" if self.aggregate == "mean" else "step_min_logprob"
        return seen_of_steps(models.profile, params.temperature, self.boundary).quantile(
            kind, self.quantile
        )
