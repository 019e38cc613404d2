"""RSD: the draft writes steps, and a process reward model says which ones stand.

Liao et al., "Reward-Guided Speculative Decoding for Efficient LLM Reasoning" (arXiv 2501.19324):
a step of the draft is accepted with a chance that grows with its reward, else the target writes
the step, which nobody judges.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from antiphon.errors import UserError
from antiphon.methods import rewards
from antiphon.methods.base import Models
from antiphon.methods.boundary import check_steps
from antiphon.methods.redo import Redo
from antiphon.methods.speculative import need_costs
from antiphon.methods.steps import StepWriter, step_commit
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps
from antiphon.sampling import Context

ACCEPTS = ("binary", "clipped", "logistic")


@dataclass(frozen=True, slots=True)
class RSD:
    """Configuration. The defaults are those of the paper's code.

    Attributes:
        reward: folder of the reward model: a sequence classifier with one label, or a value
            head on the target; "": the bundled pair's.
        delta: the reward from which a step is accepted.
        accept: the chance of that: "binary", 1 from delta on; "clipped", the reward itself;
            "logistic", sigmoid(slope (r - delta)).
        slope: alpha of "logistic".
        gamma: draft tokens a round of exact speculation, where the target writes a step, or
            "auto"; 0: it writes token by token.
        boundary: what closes a step after some text: "blank-line" or "line".
        longest: tokens after which a step counts as complete.
    """

    GUARANTEE: ClassVar[str] = "none; delta > 1 is the target step by step (accept=binary)"
    SOURCE: ClassVar[str] = "arXiv 2501.19324"

    reward: str = ""
    delta: float = 0.7
    accept: str = "binary"
    slope: float = 10.0
    gamma: int | Literal["auto"] = 0
    boundary: str = "blank-line"
    longest: int = 256

    def __post_init__(self) -> None:
        check_steps(self.gamma, self.longest, self.boundary)
        if self.delta != self.delta:
            raise UserError("delta is not a number: give a reward, 0 to 1")
        if self.accept not in ACCEPTS:
            raise UserError(f"accept is {self.accept!r}: choose {', '.join(ACCEPTS)}")
        if not self.slope > 0:
            raise UserError(f"slope is {self.slope!r}: give a number above 0")

    def check(self, models: Models, params: SamplingParams) -> None:
        if models.draft is None:
            raise UserError("rsd needs a draft model: give --draft PATH or --draft self")
        need_costs(self.gamma, models)
        rewards.load(self.reward, models.target, models.pair)

    def run(self, request: Request, models: Models) -> Steps[None]:
        assert models.draft is not None
        reward = rewards.load(self.reward, models.target, models.pair)
        draft = StepWriter(models.draft, request, self.longest, self.boundary)
        target = StepWriter(models.target, request, self.longest, self.boundary)
        redo = Redo(target, draft, self.gamma, models)
        context = Context(request.prompt)
        while request.room(len(context.output)) > 0:
            # 1. The draft writes a step.
            (step,) = yield from draft.propose(context, 1)

            # 2. The target reads it; its hidden state, or the text itself, is rewarded.
            scored = yield from target.score(context, step.tokens, hidden=reward.hidden > 0)
            text = request.prompt + context.output + tuple(step.tokens)
            value = reward(text, scored.hidden)
            accepted = request.randomness.uniform() < self.chance(value)

            # 3. A refused step the target writes in its place.
            step = yield from redo.settle(context, step, scored if accepted else None)
            yield step_commit(step, accepted, value)
            context = context.then(step.tokens)
            if step.tokens[-1] in draft.ends:
                return

    def chance(self, reward: float) -> float:
        """omega(r): the chance that a step with this reward is accepted."""
        if self.accept == "binary":
            return 1.0 if reward >= self.delta else 0.0
        if self.accept == "clipped":
            return min(max(reward, 0.0), 1.0)
        # Beyond 500 the logistic function is 0 or 1 in any case, and exp would overflow.
        odds = min(max(self.slope * (reward - self.delta), -500.0), 500.0)
        return 1.0 / (1.0 + math.exp(-odds))
