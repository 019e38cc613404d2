"""One training run in memory: model, optimiser, stream position; one call, one update."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from antiphon.lab import checkpoint
from antiphon.lab.evaluate import grade, solve
from antiphon.lab.growth import grow, renamed
from antiphon.lab.muon import MuonAdam
from antiphon.lab.problems import problem
from antiphon.lab.recipe import Progress
from antiphon.lab.spec import Plan, new_model
from antiphon.lab.stream import Batch, chunk_batches

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Trainer:
    """Everything a checkpoint holds, and the update rule."""

    def __init__(
        self, plan: Plan, tokenizer: PreTrainedTokenizerFast, resume_from: Path | None
    ) -> None:
        self.plan, self.tokenizer = plan, tokenizer
        self.progress = Progress(layers=plan.shape.layers, history=[])
        self._batches: list[Batch] = []
        if resume_from is None:
            self.model = new_model(plan.shape, tokenizer, plan.seed)
            self.optimiser = self._optimiser()
            return
        weights, optimiser, state = checkpoint.load(resume_from)
        self.progress = Progress(**state)
        shape = replace(plan.shape, layers=self.progress.layers)
        self.model = new_model(shape, tokenizer, plan.seed)
        self.model.load_state_dict(weights, strict=False)
        self.model.tie_weights()
        self.optimiser = self._optimiser()
        self.optimiser.state.update(optimiser)
        self.optimiser.adam_steps = self.progress.adam_steps

    def _optimiser(self) -> MuonAdam:
        return MuonAdam(self.model, muon_rate=self._muon_rate(), adam_rate=self.plan.adam_rate)

    def _muon_rate(self) -> float:
        # The updates of all layers add up in the residual stream, so more layers move less each.
        return self.plan.muon_rate * math.sqrt(self.plan.shape.layers / self.progress.layers)

    def step(self) -> None:
        """One batch, one update; deepens the model first where the plan says so."""
        share = self.progress.share(self.plan)
        if self.plan.layers_at(share) > self.progress.layers:
            self._grow(self.plan.layers_at(share))
        batch = self._next_batch(share)
        hidden = self.model.model(batch.ids, use_cache=False).last_hidden_state
        # `[n, V]`: only the positions that predict a solution's token need logits.
        logits = self.model.lm_head(hidden[:, :-1][batch.trained[:, :-1]])
        loss = functional.cross_entropy(logits, batch.ids[:, 1:][batch.trained[:, :-1]])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step(self.plan.rate(share))
        done = self.progress
        done.step += 1
        done.tokens += batch.tokens
        done.adam_steps = self.optimiser.adam_steps
        done.loss += (loss.item() - done.loss) * max(0.02, 1 / done.step)

    def check(self, count: int) -> float:
        """Greedy accuracy on the first `count` calibration problems."""
        gold = [problem("calibration", i) for i in range(count)]
        self.model.eval()
        texts = solve(self.model, self.tokenizer, [p.question for p in gold], batch=count)
        self.model.train()
        accuracy = grade(gold, texts).accuracy
        done = self.progress
        if done.history is not None:
            done.history.append(
                {
                    "tokens": done.tokens,
                    "seconds": round(done.seconds, 1),
                    "loss": done.loss,
                    "accuracy": accuracy,
                    "layers": done.layers,
                }
            )
        return accuracy

    def save(self, folder: Path) -> None:
        """Writes a checkpoint that a new process continues from exactly."""
        weights = {k: v for k, v in self.model.state_dict().items() if k != "lm_head.weight"}
        checkpoint.save(
            folder, self.progress.step, weights, self.optimiser.state, asdict(self.progress)
        )

    def _next_batch(self, share: float) -> Batch:
        done = self.progress
        if done.drills is None or done.largest is None:
            done.drills, done.largest = self.plan.drill_share(share), self.plan.largest(share)
        if not self._batches:
            self._batches = chunk_batches(
                self.tokenizer,
                self.plan.seed,
                done.chunk,
                done.drills,
                done.largest,
                self.plan.batch_tokens,
            )
        batch = self._batches[done.position]
        done.position += 1
        if done.position == len(self._batches):
            done.chunk, done.position, done.drills, self._batches = done.chunk + 1, 0, None, []
            done.largest = None
        return batch

    def _grow(self, layers: int) -> None:
        self.model, places = grow(
            self.model, self.plan.shape, self.tokenizer, layers, self.plan.seed
        )
        self.optimiser.state = {
            renamed(name, places): value for name, value in self.optimiser.state.items()
        }
        self.optimiser.attach(self.model)
        self.progress.layers = layers
        self.optimiser.muon_rate = self._muon_rate()
