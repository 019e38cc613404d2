"""The endless training stream: fresh problems and drills, tokenised, sorted by length, batched."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from antiphon.lab.problems import drill, problem
from antiphon.lab.tokenizer import END, PAD, prompt_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CHUNK = 512


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded documents `[B, T]` and the mask of the tokens whose prediction is trained."""

    ids: Tensor
    trained: Tensor

    @property
    def tokens(self) -> int:
        """Positions computed, padding included."""
        return self.ids.numel()


def chunk_batches(
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    chunk: int,
    drills: float,
    largest: int,
    batch_tokens: int,
) -> list[Batch]:
    """The batches of chunk number `chunk`: a pure function of the arguments.

    Args:
        tokenizer: the pair's tokenizer.
        seed: seed of the run; it shifts which problems are drawn.
        chunk: counts up from 0; no document is ever repeated.
        drills: share of documents that are drills.
        largest: ceiling of every number.
        batch_tokens: upper bound on the positions of a batch.
    """
    order = random.Random(f"{seed}/{chunk}")
    base = (seed * 1_000_003 + chunk) * CHUNK
    documents = [
        drill(base + i, largest) if order.random() < drills else problem("train", base + i, largest)
        for i in range(CHUNK)
    ]
    prompts = tokenizer([prompt_of(d.question) for d in documents])["input_ids"]
    solutions = tokenizer([d.solution + END for d in documents])["input_ids"]
    rows = sorted(zip(prompts, solutions, strict=True), key=lambda row: len(row[0]) + len(row[1]))
    batches: list[Batch] = []
    group: list[tuple[list[int], list[int]]] = []
    pad = tokenizer.convert_tokens_to_ids(PAD)
    for row in rows:
        if group and (len(group) + 1) * (len(row[0]) + len(row[1])) > batch_tokens:
            batches.append(_pad(group, pad))
            group = []
        group.append(row)
    batches.append(_pad(group, pad))
    order.shuffle(batches)
    return batches


def _pad(rows: list[tuple[list[int], list[int]]], pad: int) -> Batch:
    width = max(len(p) + len(s) for p, s in rows)
    ids = torch.full((len(rows), width), pad)
    trained = torch.zeros((len(rows), width), dtype=torch.bool)
    for i, (prompt, solution) in enumerate(rows):
        n, m = len(prompt), len(solution)
        ids[i, : n + m] = torch.tensor(prompt + solution)
        # Position t predicts t + 1: the last prompt token predicts the first of the solution.
        trained[i, n - 1 : n + m - 1] = True
    return Batch(ids, trained)
