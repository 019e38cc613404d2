"""The composition of rules on a chain: base, then rescue, then veto, left to right.

After a rescue the scan goes on: the target's logits at later positions were computed with the
draft's token as input, so they stay valid. A refusal or a veto ends the block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphon.drawing import Randomness, draw
from antiphon.rules.base import BaseRule, Rescue, Verdict, Veto
from antiphon.rules.evidence import Evidence


@dataclass(frozen=True, slots=True)
class Rules:
    """A base rule with, at will, a rescue and a veto on top."""

    base: BaseRule
    rescue: Rescue | None = None
    veto: Veto | None = None


def judge(
    rules: Rules,
    evidence: Evidence,
    randomness: Randomness,
    asked: Callable[[Evidence, int, bool], None] | None = None,
) -> Verdict:
    """Judge a chain.

    `asked` hears of every token the base rule refused on the way: its position, and whether the
    rescue kept it.

    Draws one uniform per token judged and one for the token the target adds: as many, and in
    the same order, as the exact rule does. So a rule at its neutral setting writes the exact
    rule's text, seed by seed.
    """
    acceptance = rules.base.judge(evidence)
    scores, chances = acceptance.score.tolist(), evidence.qx.tolist()
    kept: list[bool] | None = None
    vetoed = rules.veto.refuse(evidence).tolist() if rules.veto else None
    rescued = 0
    for k in range(len(evidence)):
        accepted = randomness.uniform() * chances[k] < scores[k]
        if not accepted and rules.rescue is not None:
            if kept is None:  # Many a block has no use for a rescue.
                kept = rules.rescue.keep(evidence).tolist()
            accepted = bool(kept[k])
            rescued += accepted
            if asked is not None:
                asked(evidence, k, accepted)
        if not accepted:
            token = draw(acceptance.residual(k), randomness.uniform())
            return _verdict(k, token, rules, fired=rescued)
        if vetoed is not None and vetoed[k]:
            assert rules.veto is not None
            token = draw(rules.veto.redraw(evidence, k), randomness.uniform())
            return _verdict(k, token, rules, fired=rescued + 1)
    token = draw(evidence.p[len(evidence)], randomness.uniform())
    return _verdict(len(evidence), token, rules, rescued, whole=True)


def _verdict(count: int, token: int, rules: Rules, fired: int, whole: bool = False) -> Verdict:
    counted = rules.rescue is not None or rules.veto is not None
    return Verdict(
        accepted=tuple(range(count)),
        token=token,
        provenance="bonus" if whole else "correction",
        notes={"fired": fired} if counted else {},
    )
