"""SpecReason: the draft writes steps, and the target grades each with a single digit.

Pan et al., "SpecReason: Fast and Accurate Inference-Time Compute via Speculative Reasoning"
(arXiv 2504.07891): a step whose grade reaches the threshold stands, else the target writes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from antiphon.errors import UserError
from antiphon.methods.base import Models
from antiphon.methods.boundary import check_steps
from antiphon.methods.redo import Redo
from antiphon.methods.speculative import need_costs
from antiphon.methods.steps import StepWriter, step_commit
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps
from antiphon.sampling import Context

QUESTION = "\n\nHow good is this last step, from 0 (wrong) to 9 (right and useful)? Grade: "
GRADES = ("greedy", "average")


@dataclass(frozen=True, slots=True)
class SpecReason:
    """Configuration.

    Attributes:
        threshold: accept a step from this grade on, 0 to 9; above 9 the target writes all.
        grade: "greedy", the most probable digit (no digit counts as 0), or "average", the mean
            digit by the digits' probabilities.
        first: the target writes this many steps itself before the draft begins.
        question: what the target reads after the step; its next token is the grade. Ours: the
            authors put theirs as another turn of the chat.
        gamma: draft tokens a round of exact speculation, where the target writes a step, or
            "auto"; 0: it writes token by token.
        boundary: what closes a step after some text: "blank-line" or "line".
        longest: tokens after which a step counts as complete.
    """

    GUARANTEE: ClassVar[str] = "none; threshold > 9 is the target step by step"
    SOURCE: ClassVar[str] = "arXiv 2504.07891"

    threshold: float = 7.0
    grade: str = "greedy"
    first: int = 0
    question: str = QUESTION
    gamma: int | Literal["auto"] = 0
    boundary: str = "blank-line"
    longest: int = 256

    def __post_init__(self) -> None:
        check_steps(self.gamma, self.longest, self.boundary)
        if self.threshold != self.threshold:
            raise UserError("threshold is not a number: give a grade, 0 to 9")
        if self.grade not in GRADES:
            raise UserError(f"grade is {self.grade!r}: choose {', '.join(GRADES)}")
        if type(self.first) is not int or self.first < 0:
            raise UserError(f"first is {self.first!r}: give a number of steps, 0 or more")
        if not self.question:
            raise UserError("question is empty: give the text that asks for a grade")

    def check(self, models: Models, params: SamplingParams) -> None:
        if models.draft is None:
            raise UserError("specreason needs a draft model: give --draft PATH or --draft self")
        need_costs(self.gamma, models)
        if models.encode is None:
            raise UserError("specreason puts a question to the target: load the pair's tokenizer")

    def run(self, request: Request, models: Models) -> Steps[None]:
        assert models.draft is not None
        assert models.encode is not None
        question = models.encode(self.question)
        digits = [models.encode(str(digit))[-1] for digit in range(10)]
        draft = StepWriter(models.draft, request, self.longest, self.boundary)
        target = StepWriter(models.target, request, self.longest, self.boundary)
        redo = Redo(target, draft, self.gamma, models)
        context, steps = Context(request.prompt), 0
        while request.room(len(context.output)) > 0:
            drafted, scored, grade = None, None, 0.0
            if steps >= self.first:
                # 1. The draft writes a step.
                (drafted,) = yield from draft.propose(context, 1)
            read = len(context.prompt) + len(context.output) + len(question)
            # At the context's end there is no room for the question.
            if drafted is not None and read + len(drafted.tokens) <= models.target.context_length:
                # 2. The target reads it and the question, in one pass, and its next token grades.
                scored = yield from target.score(context, drafted.tokens, then=question)
                assert scored.answer is not None
                grade = self.mark(scored.answer, digits)

            # 3. What is not good enough the target writes.
            accepted = scored is not None and grade >= self.threshold
            step = yield from redo.settle(context, drafted, scored if accepted else None)
            yield step_commit(step, accepted, grade)
            context = context.then(step.tokens)
            steps += 1
            if step.tokens[-1] in draft.ends:
                return

    def mark(self, logits: torch.Tensor, digits: list[int]) -> float:
        """The grade that the logits ``[V]`` after the question give."""
        if self.grade == "greedy":
            best = int(logits.argmax())
            return float(digits.index(best)) if best in digits else 0.0
        chances = logits[digits].float().softmax(-1)
        return float(chances @ torch.arange(10, dtype=chances.dtype, device=chances.device))
