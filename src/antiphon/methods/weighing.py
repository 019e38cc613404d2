"""What a drafted block does to a particle: how much of it stands, what follows, and the weight.

Whole blocks stand as in SMC-SD (arXiv 2604.15672, Algorithm 1), or up to where the population is
still spread wide enough. Rejection control (Liu, Chen and Wong 1998, "Rejection control and
sequential importance sampling") lies between that and exact speculative decoding: tokens the
target finds too unlikely are refused with the chance that makes the weights of the rest right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from antiphon.drawing import Randomness, draw
from antiphon.methods.particle import Draft
from antiphon.methods.particles import Floats, effective_size
from antiphon.request import Provenance
from antiphon.sampling import Distributions


@dataclass(frozen=True, slots=True)
class Round:
    """What was drafted, and what it is weighed by.

    Attributes:
        drafts: of the particles that draft.
        rows: of each of them, the rows of p at its tokens and after the last.
        p: the target's distributions, ``R`` rows.
        power: alpha; weights aim at p^alpha.
        ends: tokens that end a text.
        randomness: the request's.
    """

    drafts: Sequence[Draft]
    rows: Sequence[Sequence[int]]
    p: Distributions
    power: float
    ends: frozenset[int]
    randomness: Randomness


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one particle's block.

    Attributes:
        kept: how many drafted tokens stand.
        last: the target's token after them; None after the end of a text.
        who: "bonus" where the whole block stands, else "correction".
        log_gain: what is added to the logarithm of the particle's weight.
    """

    kept: int
    last: int | None
    who: Provenance
    log_gain: float


def whole_blocks(
    drafted: Round, log_weights: Floats, places: Sequence[int], bar: float = 0.0
) -> list[Outcome]:
    """Every token stands; w grows by p^alpha / q of each, and the target adds one of its own.

    Args:
        log_weights: of all particles, finished ones too, ``[N]``.
        places: of the drafting particles in it.
        bar: keep the longest beginning of the block at whose end the effective sample size is
            still at or above this, one token at least where any has weight; 0: the whole block.
    """
    drafts, rows, p, power = drafted.drafts, drafted.rows, drafted.p, drafted.power
    longest = max(len(draft.tokens) for draft in drafts)
    gains = np.zeros((len(log_weights), longest))
    for place, draft, mine in zip(places, drafts, rows, strict=True):
        if draft.tokens:
            log_p = np.array(p.log_chances(mine[:-1], draft.tokens))
            gains[place, : len(draft.tokens)] = power * log_p - draft.log_q
    kept = longest
    if bar and longest:
        running = log_weights[:, None] + gains.cumsum(1)
        fit = [j + 1 for j in range(longest) if effective_size(running[:, j]) >= bar]
        # A first token that the target gives to nobody is written by the target itself.
        kept = max(fit, default=1 if running[:, 0].max() > -np.inf else 0)
    outcomes = []
    for place, draft, mine in zip(places, drafts, rows, strict=True):
        stand = min(kept, len(draft.tokens))
        gain = float(gains[place, :stand].sum())
        last = None
        if not stand or draft.tokens[stand - 1] not in drafted.ends:
            aim, log_mass = sharpened(p[mine[stand]], power)
            last = draw(aim, drafted.randomness.uniform())
            gain += log_mass
        outcomes.append(Outcome(stand, last, "bonus", gain))
    return outcomes


def controlled_blocks(drafted: Round, control: float) -> list[Outcome]:
    """Rejection control: token x stands with chance min(1, p(x) / (c q(x))), c = `control`.

    A refused one is drawn anew from (p - q)+. Together that draws from
    ``o = min(q, p / c) + R (p - q)+ / D``, R the chance of a refusal and D the mass of
    (p - q)+; the weight grows by p / o, which is never below c. At c = 1 o is p: exact
    speculative decoding, particle by particle. As c falls to 0, o tends to q.

    Args:
        drafted: each draft holds its q.
        control: c, above 0 and at most 1.
    """
    p, power = drafted.p, drafted.power
    outcomes = []
    for draft, mine in zip(drafted.drafts, drafted.rows, strict=True):
        us = drafted.randomness.uniforms(len(draft.tokens) + 1)
        gain, kept, last = 0.0, 0, None
        who: Provenance = "bonus"
        for token, q, row, u in zip(draft.tokens, draft.q, mine, us, strict=False):
            aim, log_mass = sharpened(p[row], power)
            stands = u * control * float(q[token]) < float(aim[token])
            if not stands:
                last, who = draw((aim - q).clamp_min(0), us[-1]), "correction"
            gain += log_mass
            if control < 1:
                gain += _log_ratio(aim, q, token if last is None else last, control)
            if not stands:
                break
            kept += 1
        if last is None and not (kept and draft.tokens[kept - 1] in drafted.ends):
            aim, log_mass = sharpened(p[mine[kept]], power)
            last = draw(aim, us[-1])
            gain += log_mass
        outcomes.append(Outcome(kept, last, who, gain))
    return outcomes


def sharpened(p: Tensor, power: float) -> tuple[Tensor, float]:
    """p^alpha scaled to sum 1, ``[V]``, and the logarithm of its mass."""
    if power == 1.0:
        return p, 0.0
    raised = p.double() ** power
    mass = raised.sum()
    return raised / mass, float(mass.log())


def _log_ratio(p: Tensor, q: Tensor, token: int, control: float) -> float:
    """Log p / o at one token."""
    # R, which is 1 less the mass of min(q, p / c), without the rounding of that difference.
    refused = float(torch.sub(q, p, alpha=1 / control).clamp_min_(0).sum())
    deficit = float((p - q).clamp_min_(0).sum())
    mine, theirs = float(p[token]), float(q[token])
    # Rounding must not promise more than all of the deficit.
    share = min(refused / deficit, 1.0) if deficit > 0 else 0.0
    drawn = min(theirs, mine / control) + share * max(mine - theirs, 0.0)
    return math.log(mine / drawn)
