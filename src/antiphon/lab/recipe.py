"""Trains the bundled pair from scratch on a CPU, and survives being stopped at any moment."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from antiphon.errors import UserError
from antiphon.lab.spec import PLANS, Plan

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

_TOKENIZER_PROBLEMS = 6000


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of training between two checkpoints, held-out checks and exports."""

    checkpoint: float = 60.0
    check: float = 180.0
    export: float = 600.0
    check_problems: int = 100


@dataclass(slots=True)
class Progress:
    """What a training has done so far; all of it is in the checkpoint."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    chunk: int = 0
    position: int = 0
    drills: float | None = None
    largest: int | None = None
    adam_steps: int = 0
    layers: int = 0
    loss: float = 0.0
    history: list[dict[str, float]] | None = None

    def share(self, plan: Plan) -> float:
        """Progress from 0 to 1: the larger share used of the two budgets."""
        return min(1.0, max(self.tokens / plan.tokens, self.seconds / plan.seconds))


def pair_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer in `folder`, trained there first if it is missing; the same one every time."""
    from antiphon.lab.problems import problem
    from antiphon.lab.tokenizer import load_tokenizer, train_tokenizer

    if not (folder / "tokenizer.json").is_file():
        drawn = [problem("train", i) for i in range(_TOKENIZER_PROBLEMS)]
        texts = [text for p in drawn for text in (p.question, p.solution)]
        train_tokenizer(texts).save_pretrained(folder)
    return load_tokenizer(folder)


def train(
    out: Path,
    which: str = "both",
    *,
    resume: bool = True,
    tokens: int | None = None,
    seconds: float | None = None,
    pace: Pace = Pace(),
    export_to: Path | None = None,
    threads: int = 1,
) -> None:
    """Trains models of the pair and exports them to `export_to` (default `out`) as bf16.

    Args:
        out: folder of the checkpoints.
        which: `draft`, `target`, `both` or `value-head`.
        resume: go on from the last checkpoint in `out`; otherwise start over.
        tokens: budget of training positions, instead of the plan's.
        seconds: budget of training time, instead of the plan's; pauses do not count.
        pace: how often to save, check and export.
        export_to: where `draft/`, `target/` and `value_head/` go.
        threads: CPU threads.
    """
    to = export_to or out
    if which == "value-head":
        from antiphon.lab.value_head import train_value_head

        train_value_head(to)
        return
    if which not in ("draft", "target", "both"):
        raise UserError(f"cannot train {which!r}: choose draft, target, both or value-head")
    for name in ("draft", "target") if which == "both" else (which,):
        plan = PLANS[name]
        plan = replace(plan, tokens=tokens or plan.tokens, seconds=seconds or plan.seconds)
        train_one(out, name, plan, resume=resume, pace=pace, export_to=to / name, threads=threads)


def train_one(
    out: Path,
    name: str,
    plan: Plan,
    *,
    resume: bool = True,
    pace: Pace = Pace(),
    export_to: Path | None = None,
    threads: int = 1,
    stop_after: int | None = None,
) -> LlamaForCausalLM:
    """Trains one model to the end of its plan; returns it in float32.

    Args:
        out: checkpoints go to `out/checkpoints/name`, the tokenizer to `out/tokenizer`.
        name: of the model.
        plan: shape, budgets and rates.
        resume: go on from the last checkpoint.
        pace: how often to save, check and export.
        export_to: folder of the bf16 export; None exports nothing.
        threads: CPU threads; more than one only pays on an idle machine.
        stop_after: return after so many steps of this call, as if killed right after a save.
    """
    import torch

    from antiphon.lab import checkpoint
    from antiphon.lab.progress import Display
    from antiphon.lab.trainer import Trainer

    torch.set_num_threads(threads)
    tokenizer = pair_tokenizer(out / "tokenizer")
    folder = out / "checkpoints" / name
    last = checkpoint.latest(folder) if resume else None
    trainer = Trainer(plan, tokenizer, last)
    done = trainer.progress
    due = {"checkpoint": pace.checkpoint, "check": pace.check, "export": pace.export}
    for event in due:
        due[event] += done.seconds
    steps = 0
    with Display(name) as display:
        while done.share(plan) < 1.0:
            # Processor time, because a paused or crowded-out process has not trained.
            start = time.process_time()
            trainer.step()
            done.seconds += (time.process_time() - start) / threads
            steps += 1
            display.update(done, plan)
            if stop_after is not None and steps >= stop_after:
                trainer.save(folder)
                return trainer.model
            if _due(due, "checkpoint", done.seconds, pace.checkpoint):
                trainer.save(folder)
            if _due(due, "check", done.seconds, pace.check):
                accuracy = trainer.check(pace.check_problems)
                display.note(f"{name}: {accuracy:.0%} of {pace.check_problems} right")
            if export_to and _due(due, "export", done.seconds, pace.export):
                checkpoint.export(trainer.model, tokenizer, export_to)
    trainer.save(folder)
    if export_to:
        checkpoint.export(trainer.model, tokenizer, export_to)
    return trainer.model


def _due(due: dict[str, float], event: str, now: float, every: float) -> bool:
    if now < due[event]:
        return False
    due[event] = now + every
    return True
