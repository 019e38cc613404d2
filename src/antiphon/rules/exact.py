"""The exact rule: the output is distributed as if the target had written it alone.

Leviathan et al. 2023 (arXiv 2211.17192, Algorithm 1) and Chen et al. 2023 (2302.01318) for
one draw per position; several independent draws are tried one after the other against what
the earlier ones left over (recursive rejection: Miao et al. 2024, SpecInfer, 2305.09781,
Algorithm 2; Yang et al. 2024, multi-candidate speculative decoding, 2401.06706).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from antiphon.drawing import Randomness, draw
from antiphon.rules.base import Acceptance, Block, Verdict
from antiphon.rules.evidence import Evidence, normalised
from antiphon.sampling import Distributions


@dataclass(frozen=True, slots=True)
class Exact:
    """The exact rule on a chain, for rescues and vetoes to stand on."""

    GUARANTEE: ClassVar[str] = "the output distribution is the target's"
    SOURCE: ClassVar[str] = "arXiv 2211.17192"

    def judge(self, evidence: Evidence) -> Acceptance:
        return Acceptance(evidence.px, lambda k: residual(evidence.p[k], evidence.q[k]))


def exact(block: Block, p: Distributions | torch.Tensor, randomness: Randomness) -> Verdict:
    """Judge a block.

    Args:
        block: the drafts.
        p: the target's distributions, ``K + 1`` rows of ``[V]``, through the same pipeline as
            the block's q.
        randomness: the request's stream; one uniform per draw judged, one for the last token.
    """
    accepted: list[int] = []
    row = 0
    while True:
        found, left = pick(block, p, row, randomness)
        if found is None:
            judged_none = not block.draws[row]
            return Verdict(
                accepted=tuple(accepted),
                token=draw(left, randomness.uniform()),
                provenance="bonus" if judged_none else "correction",
            )
        accepted.append(found)
        row = found + 1


def pick(
    block: Block, p: Distributions | torch.Tensor, row: int, randomness: Randomness
) -> tuple[int | None, torch.Tensor]:
    """The first draw at a row that is accepted, and what the refused ones left of p, ``[V]``."""
    left = p[row]
    for token, source in block.draws[row]:
        x = block.tokens[token]
        q = None if block.q is None else block.q[source]
        chance = 1.0 if q is None else float(q[x])
        if randomness.uniform() * chance < float(left[x]):
            return token, left
        left = without(left, x) if q is None else residual(left, q)
    return None, left


def greedy(block: Block, best: Sequence[int]) -> Verdict:
    """The exact rule at temperature 0, where p and q are one-hot: equal tokens stand.

    Args:
        block: drafts of a deterministic drafter.
        best: the target's token at each of the ``K + 1`` rows.
    """
    accepted: list[int] = []
    row = 0
    while True:
        drawn = [token for token, _ in block.draws[row]]
        same = next((token for token in drawn if block.tokens[token] == best[row]), None)
        if same is None:
            who: Literal["bonus", "correction"] = "correction" if drawn else "bonus"
            return Verdict(tuple(accepted), best[row], who)
        accepted.append(same)
        row = same + 1


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """What p has left after a draw from q was refused: ``max(p - q, 0)``, normalised, ``[V]``."""
    # p = q up to rounding: a refusal then has probability zero, and p itself is the limit.
    return normalised((p - q).clamp_min_(0), otherwise=p)


def without(p: torch.Tensor, x: int) -> torch.Tensor:
    """`residual` after a q that is one-hot on x: p without x, normalised, ``[V]``."""
    left = p.clone()
    left[x] = 0.0
    return normalised(left, otherwise=p)
