"""What raw logits say of tokens: log-probabilities before temperature and truncation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_SMALL = 2**16  # Logits up to which all rows at once are cheaper than a few at a time.


def logprobs_of(
    logits: Tensor, tokens: Sequence[int] | Tensor, rows: Sequence[int] | None = None
) -> Tensor:
    """Log-probabilities [C], in nats, of ``tokens`` [C] under raw ``logits`` [R, V].

    ``rows`` says which row each token is looked up in; None: one after the other (R = C).
    """
    ids = torch.as_tensor(tokens, dtype=torch.long, device=logits.device)
    each = range(len(ids)) if rows is None else rows
    values = [
        rows_of(logits, each[some]).float().log_softmax(-1).gather(-1, ids[some, None])[:, 0]
        for some in stretches(logits, len(ids))
    ]
    return torch.cat(values) if values else torch.zeros(0, device=logits.device)


def top_logprobs(logits: Tensor, k: int) -> list[dict[int, float]]:
    """A row's ``k`` most probable tokens, best first, with raw log-probabilities in nats."""
    top = logits.float().log_softmax(-1).topk(min(k, logits.shape[-1]))
    rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [dict(zip(ids, values, strict=True)) for ids, values in rows]


def stretches(logits: Tensor, rows: int) -> list[slice]:
    """`rows` rows as wide as those of ``logits``, cut into what is best worked on at once.

    Small ones, and all on an accelerator, come all at once. Large ones on the CPU come one a
    thread: an operation over a row keeps one thread busy, and the memory of one stretch, still in
    the cache, serves the next.
    """
    large = logits.device.type == "cpu" and rows * logits.shape[-1] > _SMALL
    wide = torch.get_num_threads() if large else max(rows, 1)
    return [slice(start, start + wide) for start in range(0, rows, wide)]


def rows_of(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """Some rows of ``logits``; nothing is copied where they follow each other."""
    first = rows[0] if len(rows) else 0
    if all(row == first + i for i, row in enumerate(rows)):
        return logits[first : first + len(rows)]
    return logits[list(rows)]
