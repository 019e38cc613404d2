"""How a distribution becomes a token: the draw, and a request's random stream."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
_STRETCH = 1024  # Tokens summed at once while drawing from a large vocabulary.
_NO_MASS = "cannot draw from probabilities that are all 0, or not finite"


def draw(probs: Tensor, u: float) -> int:
    """The token at ``u`` in [0, 1) of the cumulative distribution of ``probs`` [V].

    Summed in float64 (on the CPU, stretches of a large vocabulary in its own precision) and
    scaled by the sum, so ``probs`` need not add up to 1 exactly; a token of probability 0 is never
    drawn. Raises ValueError where there is no mass, or it is not finite.
    """
    return draw_rows(probs[None], (u,))[0]


def draw_rows(probs: Tensor, us: Sequence[float], rows: Sequence[int] | None = None) -> list[int]:
    """Tokens as of :func:`draw`: ``probs`` [R, V], ``us`` C numbers in [0, 1).

    ``rows`` says which row each of them is drawn from; None: one after the other (R = C).
    """
    places = range(len(probs)) if rows is None else rows
    if len(us) != len(places):
        raise ValueError(f"{len(places)} rows of probabilities but {len(us)} uniforms")
    if probs.device.type == "cpu":
        return _draw_on_cpu(probs.detach(), us, places)
    weights = probs.cpu() if probs.device.type == "mps" else probs  # MPS has no float64.
    # Parallel scans need not be monotone: only tokens with mass may carry a bound at all.
    bounds = weights.double().cumsum(-1).masked_fill_(weights <= 0, -math.inf)
    total = bounds.amax(-1, keepdim=True)
    if not bool(((total > 0) & (total < math.inf)).all()):
        raise ValueError(_NO_MASS)
    if rows is not None:
        bounds, total = bounds[list(rows)], total[list(rows)]
    u = torch.tensor(us, dtype=torch.float64, device=bounds.device)[:, None]
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens: list[int] = (bounds > target).to(torch.uint8).argmax(-1).tolist()
    return tokens


def derived_seed(*parts: object) -> int:
    """A seed made from anything that has a text: equal parts, equal seed."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def lot(name: str, byte: int = 0) -> int:
    """A number from 0 to 255 that a name keeps; other bytes, other lots."""
    return hashlib.sha256(name.encode()).digest()[byte]


class Randomness:
    """A request's random stream: counter-based (Philox), apart from every global generator.

    ``index`` says which of the request's n samples the stream is for: streams of one seed are
    independent. ``seed`` is the seed in use, also where none was given.
    """

    def __init__(self, seed: int | None = None, index: int = 0) -> None:
        self.seed = secrets.randbits(63) if seed is None else seed
        sequence = np.random.SeedSequence(self.seed, spawn_key=(index,))
        self._generator = np.random.Generator(np.random.Philox(sequence))

    def uniform(self) -> float:
        """The next number, in [0, 1)."""
        return float(self._generator.random())

    def uniforms(self, k: int) -> list[float]:
        """The next ``k`` numbers: those that ``k`` calls of :meth:`uniform` would give."""
        numbers: list[float] = self._generator.random(k).tolist()
        return numbers


def _draw_on_cpu(probs: Tensor, us: Sequence[float], places: Sequence[int]) -> list[int]:
    """`draw_rows` on the CPU, where one running sum over a large vocabulary takes long."""
    weights = probs.numpy()
    V = weights.shape[1]
    if V < 4 * _STRETCH:
        return [_locate(weights[row], u)[0] for row, u in zip(places, us, strict=True)]
    # First the stretch of tokens that u falls into, then the token in it.
    whole = V - V % _STRETCH
    masses = probs[:, :whole].unflatten(1, (-1, _STRETCH)).sum(-1).numpy()
    rest = weights[:, whole:].sum(1, keepdims=True)
    parts = np.concatenate([masses, rest], 1)
    tokens = []
    for row, u in zip(places, us, strict=True):
        stretch, inside = _locate(parts[row], u)
        start = stretch * _STRETCH
        tokens.append(start + _locate(weights[row, start : start + _STRETCH], inside)[0])
    return tokens


def _locate(weights: Floats, u: float) -> tuple[int, float]:
    """The index at ``u`` of the cumulative distribution of ``weights`` [N], and where in it."""
    bounds = np.add.accumulate(weights, dtype=np.float64)
    total = float(bounds[-1])
    if not 0 < total < math.inf:
        raise ValueError(_NO_MASS)
    # Below the total whatever u is: then the bound found is the first of a token with mass.
    target = min(u * total, math.nextafter(total, 0.0))
    index = int(bounds.searchsorted(target, side="right"))
    below = float(bounds[index - 1]) if index else 0.0
    return index, (target - below) / (float(bounds[index]) - below)
