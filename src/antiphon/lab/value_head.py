"""A tiny process reward model: does this step keep the solution correct?

A small MLP reads the frozen target's last hidden state at the last token of a step. It is trained
on sampled solutions of both models, each step labelled by the gold solution: a step is good if it
and every step before it does the gold solution's sums.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from antiphon.errors import UserError
from antiphon.lab.problems import STEP_BREAK, Problem, final_answer, problem
from antiphon.lab.tokenizer import END, PAD, prompt_of
from antiphon.perceptron import Perceptron

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_SUM = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
# Past every index the pair itself was trained on.
_FIRST = 10**15


class ValueHead(Perceptron):
    """`[..., H]` hidden states to the log-odds `[...]` that the step keeps the solution correct.

    Args:
        hidden: H.
        width: hidden units; 0: none, a logistic regression.
    """

    def __init__(self, hidden: int, width: int = 64) -> None:
        super().__init__(hidden, width)
        self.hidden, self.width = hidden, width

    def save(self, folder: Path, report: Report) -> None:
        """Writes `config.json` (with the report) and `model.safetensors`."""
        folder.mkdir(parents=True, exist_ok=True)
        save_file(self.state_dict(), folder / "model.safetensors")
        config = {
            "kind": "value_head",
            "input": "target's last hidden state at the last token of a step",
            "hidden": self.hidden,
            "width": self.width,
            "trained": asdict(report),
        }
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> ValueHead:
        """The head saved in `folder`."""
        if not (folder / "config.json").is_file():
            raise UserError(f"no value head in {folder}: make one with antiphon train-reward")
        config = json.loads((folder / "config.json").read_text())
        head = cls(config["hidden"], config["width"])
        head.load_state_dict(load_file(folder / "model.safetensors"))
        return head.eval()


@dataclass(frozen=True, slots=True)
class Report:
    """How well the head tells good steps from bad ones on held-out problems."""

    auroc: float
    held_out_steps: int
    held_out_good: float
    training_steps: int


def step_labels(gold: Problem, text: str) -> list[bool]:
    """For each paragraph of a sampled solution: is it still on the gold solution's path?"""
    labels: list[bool] = []
    good = True
    steps = text.split(STEP_BREAK)
    for i, step in enumerate(steps):
        expected = gold.steps[i] if i < len(gold.steps) else ""
        good = good and _SUM.findall(step) == _SUM.findall(expected)
        if i >= len(gold.steps) - 1:
            good = good and i == len(gold.steps) - 1 and final_answer(step) == gold.answer
        labels.append(good)
    return labels


def auroc(scores: Tensor, labels: Tensor) -> float:
    """Chance that a good step scores above a bad one; ties count half."""
    good, bad = scores[labels], scores[~labels].sort().values
    below = torch.searchsorted(bad, good) + torch.searchsorted(bad, good, right=True)
    return float(below.double().mean() / (2 * len(bad)))


@torch.inference_mode()
def step_states(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    gold: Sequence[Problem],
    texts: Sequence[str],
) -> tuple[Tensor, Tensor]:
    """Last hidden states at step ends `[n, H]` and their labels `[n]`."""
    states, labels = [], []
    pad = tokenizer.convert_tokens_to_ids(PAD)
    for start in range(0, len(gold), 32):
        rows, ends, marks = [], [], []
        for p, text in zip(gold[start : start + 32], texts[start : start + 32], strict=True):
            ids: list[int] = tokenizer(prompt_of(p.question))["input_ids"]
            at = []
            steps = text.split(STEP_BREAK)
            for i, step in enumerate(steps):
                ids = (
                    ids + tokenizer(step + (STEP_BREAK if i + 1 < len(steps) else END))["input_ids"]
                )
                at.append(len(ids) - 1)
            rows.append(ids)
            ends.append(at)
            marks.append(step_labels(p, text))
        batch = torch.full((len(rows), max(map(len, rows))), pad)
        for i, ids in enumerate(rows):
            batch[i, : len(ids)] = torch.tensor(ids)
        hidden = model.model(batch, use_cache=False).last_hidden_state
        for i, at in enumerate(ends):
            states.append(hidden[i, at].float())
            labels.append(torch.tensor(marks[i]))
    return torch.cat(states), torch.cat(labels)


def fit(states: Tensor, labels: Tensor, *, epochs: int = 60, seed: int = 0) -> ValueHead:
    """A head trained on `states` `[n, H]` and `labels` `[n]`."""
    torch.manual_seed(seed)
    head = ValueHead(states.shape[1])
    head.mean.copy_(states.mean(0))
    head.scale.copy_(states.std(0) + 1e-3)
    optimiser = torch.optim.AdamW(head.parameters(), lr=3e-3, weight_decay=0.1)
    batches = max(1, len(states) // 256)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * batches)
    for _ in range(epochs):
        for rows in torch.randperm(len(states)).chunk(batches):
            noisy = states[rows] + 0.1 * head.scale * torch.randn_like(states[rows])
            loss = functional.binary_cross_entropy_with_logits(head(noisy), labels[rows].float())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return head.eval()


def train_value_head(
    pair: Path, *, problems: int = 700, held_out: int = 200, temperature: float = 1.0
) -> Report:
    """Samples solutions with both models in `pair`, trains the head, saves it in `value_head/`.

    Args:
        pair: folder with `target/` and `draft/`.
        problems: fresh training problems, each solved once by each model.
        held_out: calibration problems the report is measured on.
        temperature: of the sampling.
    """
    from transformers import LlamaForCausalLM

    from antiphon.lab.evaluate import solve
    from antiphon.lab.tokenizer import load_tokenizer

    for name in ("target", "draft"):
        if not (pair / name / "config.json").is_file():
            raise UserError(f"no {name} in {pair}: train the pair there first (--which both)")
    tokenizer = load_tokenizer(pair / "target")
    models = {
        name: LlamaForCausalLM.from_pretrained(pair / name, dtype=torch.float32).eval()
        for name in ("target", "draft")
    }
    sets = {
        "train": [problem("train", _FIRST + i) for i in range(problems)],
        "held out": [problem("calibration", i) for i in range(held_out)],
    }
    drawn: dict[str, tuple[Tensor, Tensor]] = {}
    for seed, (name, gold) in enumerate(sets.items()):
        texts = [
            text
            for model in models.values()
            for text in solve(
                model,
                tokenizer,
                [p.question for p in gold],
                temperature=temperature,
                seed=seed,
            )
        ]
        drawn[name] = step_states(models["target"], tokenizer, gold * len(models), texts)
    head = fit(*drawn["train"])
    states, labels = drawn["held out"]
    with torch.inference_mode():
        score = auroc(head(states), labels)
    report = Report(score, len(labels), float(labels.float().mean()), len(drawn["train"][1]))
    head.save(pair / "value_head", report)
    return report
