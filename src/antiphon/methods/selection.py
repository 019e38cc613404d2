"""Which of several candidate steps is the most consistent with the others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence

import torch

_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")


def medoid(embeddings: torch.Tensor) -> int:
    """SpecGuard's self-consistency selector (arXiv 2604.15244).

    With cosine similarities S the paper softmaxes every row and takes the smallest diagonal
    entry; since S_jj = 1 that is the candidate with the largest ``sum_l exp(S_jl)``. One or two
    candidates are always tied; the first one wins.

    Args:
        embeddings: ``[k, W]``, in any scale.
    """
    unit = torch.nn.functional.normalize(embeddings.double(), dim=-1)
    # Rounding must not decide between candidates that are equal.
    closeness = (unit @ unit.T).round(decimals=9).exp().sum(-1)
    return int(closeness.argmax())


def vote(keys: Sequence[Hashable]) -> int:
    """The first candidate with the most frequent key; the earlier key wins a tie."""
    counts = Counter(keys)
    best = max(counts.values())
    return next(i for i, key in enumerate(keys) if counts[key] == best)


def weighted_vote(keys: Sequence[Hashable], weights: Sequence[float]) -> int:
    """The heaviest candidate among those whose common key has the most weight.

    Args:
        keys, weights: ``[N]``; the earlier candidate wins a tie.
    """
    mass: dict[Hashable, float] = {}
    for key, weight in zip(keys, weights, strict=True):
        mass[key] = mass.get(key, 0.0) + weight
    best = max(mass.values())
    winner = next(key for key, total in mass.items() if total == best)
    return max((i for i, key in enumerate(keys) if key == winner), key=lambda i: (weights[i], -i))


def answer(text: str) -> str:
    """What a text answers: its last number, or the whole text where it has none."""
    found = numbers(text)
    return found[-1].replace(",", "") if found else text.strip()


def numbers(text: str) -> tuple[str, ...]:
    """The numbers of a step, in order: what a vote on values compares."""
    return tuple(_NUMBERS.findall(text))
