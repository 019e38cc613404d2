"""What raw logits say of tokens: log-probabilities before temperature and truncation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_SMALL = 2**16  # Logits up to which all rows at once are cheaper than one after the other.


def logprobs_of(
    logits: Tensor, tokens: Sequence[int] | Tensor, rows: Sequence[int] | None = None
) -> Tensor:
    """Log-probabilities [C], in nats, of ``tokens`` [C] under raw ``logits`` [R, V].

    ``rows`` says which row each token is looked up in; None: one after the other (R = C).
    """
    ids = torch.as_tensor(tokens, dtype=torch.long, device=logits.device)
    if not len(ids) or small(logits):
        chosen = logits if rows is None else logits[list(rows)]
        return chosen.float().log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    # Row by row: the memory of one serves the next, and no row is copied to be read.
    each = range(len(ids)) if rows is None else rows
    pairs = zip(each, ids, strict=True)
    return torch.stack([logits[row].float().log_softmax(-1)[token] for row, token in pairs])


def top_logprobs(logits: Tensor, k: int) -> list[dict[int, float]]:
    """A row's ``k`` most probable tokens, best first, with raw log-probabilities in nats."""
    top = logits.float().log_softmax(-1).topk(min(k, logits.shape[-1]))
    rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [dict(zip(ids, values, strict=True)) for ids, values in rows]


def small(logits: Tensor) -> bool:
    """Whether all rows at once are cheaper than one at a time: always on an accelerator."""
    return logits.device.type != "cpu" or logits.numel() <= _SMALL
