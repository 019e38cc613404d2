"""From a problem to the exact text a model reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.eval.journal import Answer
from antiphon.eval.task import Problem, Task


@dataclass(frozen=True, slots=True)
class Prompting:
    """How every problem of a run is put.

    Attributes:
        system: a system prompt; None: the template's own, if it has one.
        instruction: stands below every question; None: the task's.
        shots: worked examples, question and solution, put before the question.
        chat: render the chat template, where the tokenizer has one.
    """

    system: str | None = None
    instruction: str | None = None
    shots: tuple[Problem, ...] = ()
    chat: bool = True

    def messages(
        self, task: Task, problem: Problem, answers: Sequence[str] = ()
    ) -> list[dict[str, str]]:
        """The conversation up to the turn that is to be answered.

        Args:
            answers: the model's answers to the problem's earlier turns.
        """
        turns = [{"role": "system", "content": self.system}] if self.system else []
        for shot in self.shots:
            turns += [_user(self._asked(task, shot)), _assistant(shot.solution)]
        turns.append(_user(self._asked(task, problem)))
        for answer, follow_up in zip(answers, problem.follow_ups, strict=False):
            turns += [_assistant(answer), _user(follow_up)]
        return turns

    def render(
        self, tokenizer: Any, task: Task, problem: Problem, answers: Sequence[str] = ()
    ) -> str:
        """The prompt's text, special tokens included; without a template, blank lines part it."""
        messages = self.messages(task, problem, answers)
        if self.chat and getattr(tokenizer, "chat_template", None):
            return str(
                tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            )
        return "\n\n".join(message["content"] for message in messages) + "\n\n"

    def encode(self, tokenizer: Any, text: str) -> tuple[int, ...]:
        """Token ids of a rendered prompt; a template has written its special tokens itself."""
        templated = self.chat and bool(getattr(tokenizer, "chat_template", None))
        return tuple(tokenizer(text, add_special_tokens=not templated).input_ids)

    def reread(self, tokenizer: Any, answer: Answer) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Token ids of a recorded answer: of its last turn's prompt and of its output."""
        output = answer.outputs[-1] if answer.outputs else ""
        ids = tuple(tokenizer(output, add_special_tokens=False).input_ids)
        return self.encode(tokenizer, answer.prompts[-1]), ids

    def _asked(self, task: Task, problem: Problem) -> str:
        instruction = task.instruction if self.instruction is None else self.instruction
        return f"{problem.question}\n{instruction}" if instruction else problem.question


def unshown(problems: Iterable[Problem], shots: Sequence[Problem]) -> tuple[Problem, ...]:
    """The problems that are none of the worked examples."""
    shown = {shot.question for shot in shots}
    return tuple(problem for problem in problems if problem.question not in shown)


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}
