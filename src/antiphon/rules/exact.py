"""The exact rule: the output is distributed as if the target had written it alone.

Leviathan et al. 2023 (arXiv 2211.17192, Algorithm 1) and Chen et al. 2023 (2302.01318) for
one draw per position; several independent draws are tried one after the other against what
the earlier ones left over (recursive rejection: Miao et al. 2024, SpecInfer, 2305.09781,
Algorithm 2; Yang et al. 2024, multi-candidate speculative decoding, 2401.06706).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from antiphon.rules.base import Acceptance, Block, Verdict
from antiphon.rules.evidence import Evidence
from antiphon.sampling import Randomness, draw


@dataclass(frozen=True, slots=True)
class Exact:
    """The exact rule on a chain, for rescues and vetoes to stand on."""

    GUARANTEE: ClassVar[str] = "the output distribution is the target's"
    SOURCE: ClassVar[str] = "arXiv 2211.17192"

    def judge(self, evidence: Evidence) -> Acceptance:
        return Acceptance(evidence.px, lambda k: residual(evidence.p[k], evidence.q[k]))


def exact(block: Block, p: torch.Tensor, randomness: Randomness) -> Verdict:
    """Judge a block.

    Args:
        block: the drafts.
        p: the target's distributions ``[K + 1, V]``, through the same pipeline as the
            block's q.
        randomness: the request's stream; one uniform per draw judged, one for the last token.
    """
    accepted: list[int] = []
    row = 0
    while True:
        left = p[row]
        for token, source in block.draws[row]:
            x, q = block.tokens[token], block.q[source]
            if randomness.uniform() * float(q[x]) < float(left[x]):
                accepted.append(token)
                row = token + 1
                break
            left = residual(left, q)
        else:
            judged_none = not block.draws[row]
            return Verdict(
                accepted=tuple(accepted),
                token=draw(left, randomness.uniform()),
                provenance="bonus" if judged_none else "correction",
            )


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """What p has left after a draw from q was refused: ``max(p - q, 0)``, normalised, ``[V]``."""
    left = (p - q).clamp_min_(0)
    total = float(left.sum())
    # p = q up to rounding: a refusal then has probability zero, and p itself is the limit.
    return left / total if total > 0 else p
