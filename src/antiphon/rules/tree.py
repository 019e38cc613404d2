"""Rescue and veto over several chains: the exact rule tries every draw, then the others speak.

The composition of `rules.judge`, on a tree: where the exact rule refuses all draws of a row, the
rescue may keep one of them, the first it likes; what was accepted or kept the veto may refuse.
Either looks at the chain from the root down to the token in question.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from antiphon.drawing import Randomness, draw
from antiphon.rules.base import Block, Rescue, Verdict, Veto
from antiphon.rules.evidence import Evidence
from antiphon.rules.exact import pick
from antiphon.sampling import Distributions


def judge_tree(
    block: Block,
    p: Distributions,
    along: Callable[[list[int]], Evidence],
    rescue: Rescue | None,
    veto: Veto | None,
    randomness: Randomness,
) -> Verdict:
    """Judge a block of one chain or more.

    Args:
        p: the target's distributions, ``K + 1`` rows of ``[V]``.
        along: the evidence on a path, given as the indices of its tokens from the root down.
    """
    path: list[int] = []
    fired = row = 0
    while True:
        found, left = pick(block, p, row, randomness)
        if found is None and rescue is not None:
            for token in dict.fromkeys(token for token, _ in block.draws[row]):
                if bool(rescue.keep(along([*path, token]))[-1]):
                    found = token
                    fired += 1
                    break
        if found is None:
            who: Literal["correction", "bonus"] = "correction" if block.draws[row] else "bonus"
            return Verdict(tuple(path), draw(left, randomness.uniform()), who, {"fired": fired})
        if veto is not None:
            evidence = along([*path, found])
            last = len(evidence) - 1
            if bool(veto.refuse(evidence)[last]):
                token = draw(veto.redraw(evidence, last), randomness.uniform())
                return Verdict(tuple(path), token, "correction", {"fired": fired + 1})
        path.append(found)
        row = found + 1
