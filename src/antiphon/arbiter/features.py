"""What the arbiter knows of a mismatch: scalars of both models' distributions there.

All of them come out of the one verification pass, and none depends on earlier decisions in the
block, so a block's mismatches are judged in one batch. The target's hidden states may stand beside
the scalars: before the draft's token, and after the target has read it, which tells what the token
leads to.
"""

from __future__ import annotations

import torch

from antiphon.rules.evidence import Evidence, at, divergence, entropy

NAMES = (
    "p of the draft's token",
    "q of the draft's token",
    "largest p",
    "largest q",
    "q of the target's first choice",
    "log p of the draft's token",
    "log q of the draft's token",
    "entropy of p",
    "entropy of q",
    "margin of p",
    "margin of q",
    "log rank of the draft's token in p",
    "log rank of the target's first choice in q",
    "KL(q, p)",
    "KL(p, q)",
    "total variation",
)
"""One a feature, in order. Probabilities are beliefs: at temperature 0 those at temperature 1."""
_FLOOR = 1e-9
_MOST = 20.0


def features(evidence: Evidence, states: bool = False) -> torch.Tensor:
    """The features of every draft token of a block, float32 ``[K, len(NAMES)]``.

    Args:
        states: append the target's last hidden states before and after the token, ``2 W`` more.
    """
    p, q, x = evidence.P[: len(evidence)].float(), evidence.Q.float(), evidence.tokens
    px, qx = at(p, x), at(q, x)
    top_p, top_q = p.topk(2, dim=-1).values, q.topk(2, dim=-1).values
    best = p.argmax(-1)
    q_best = at(q, best)
    smooth_p, smooth_q = p.clamp_min(_FLOOR), q.clamp_min(_FLOOR)
    columns = [
        px,
        qx,
        top_p[:, 0],
        top_q[:, 0],
        q_best,
        px.clamp_min(_FLOOR).log(),
        qx.clamp_min(_FLOOR).log(),
        entropy(p),
        entropy(q),
        top_p[:, 0] - top_p[:, 1],
        top_q[:, 0] - top_q[:, 1],
        (p > px[:, None]).sum(-1).float().log1p(),
        (q > q_best[:, None]).sum(-1).float().log1p(),
        divergence(q, smooth_p).clamp(0, _MOST),
        divergence(p, smooth_q).clamp(0, _MOST),
        (p - q).abs().sum(-1) / 2,
    ]
    scalars = torch.stack(columns, dim=-1)
    if not states:
        return scalars
    assert evidence.states is not None
    hidden = evidence.states.float()
    return torch.cat([scalars, hidden[:-1], hidden[1:]], dim=-1)
