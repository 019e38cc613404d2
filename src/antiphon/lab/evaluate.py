"""How often a model of the pair is right: batched greedy or sampled solving with transformers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.eval.statistics import wilson
from antiphon.lab.problems import Problem, final_answer
from antiphon.lab.tokenizer import load_tokenizer, prompt_of

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

MAX_NEW_TOKENS = 144


@dataclass(frozen=True, slots=True)
class Score:
    """Which of the problems were solved.

    Attributes:
        right: one flag a problem, in order.
        by_template: right answers and problems by template.
    """

    right: list[bool]
    by_template: dict[str, tuple[int, int]]

    @property
    def accuracy(self) -> float:
        """Share of problems solved."""
        return sum(self.right) / len(self.right)

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson 95 % interval of the accuracy."""
        return wilson(self.accuracy, len(self.right))


def solve(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    questions: Sequence[str],
    *,
    temperature: float = 0.0,
    batch: int = 64,
    seed: int = 0,
) -> list[str]:
    """The model's solutions, in order; greedy at temperature 0."""
    import torch

    torch.manual_seed(seed)
    how: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        how = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    texts: list[str] = [""] * len(questions)
    order = sorted(range(len(questions)), key=lambda i: len(questions[i]))
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        inputs = tokenizer(
            [prompt_of(questions[i]) for i in part], return_tensors="pt", padding=True
        )
        with torch.inference_mode():
            out = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=MAX_NEW_TOKENS,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                **how,
            )
        new = tokenizer.batch_decode(
            out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
        )
        for i, text in zip(part, new, strict=True):
            texts[i] = text
    return texts


def grade(problems: Sequence[Problem], texts: Sequence[str]) -> Score:
    """Compares the stated answers with the gold ones."""
    right = [final_answer(t) == p.answer for p, t in zip(problems, texts, strict=True)]
    tally: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for p, ok in zip(problems, right, strict=True):
        hits, n = tally[p.template]
        tally[p.template] = (hits + ok, n + 1)
    return Score(right, dict(sorted(tally.items())))


def evaluate(
    folder: Path,
    split: str = "test",
    *,
    limit: int | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> Score:
    """Accuracy of the model in `folder` on a bundled split, in float32.

    Args:
        folder: a model folder, such as `pair_path("draft")`.
        split: `test`, `calibration` or `unseen`.
        limit: only the first so many problems.
        temperature: 0 is greedy.
        seed: of the sampling.
    """
    import torch
    from transformers import LlamaForCausalLM

    from antiphon.lab import problems

    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    gold = problems(split)[:limit]
    texts = solve(
        model,
        load_tokenizer(folder),
        [p.question for p in gold],
        temperature=temperature,
        seed=seed,
    )
    return grade(gold, texts)
