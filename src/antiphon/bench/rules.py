"""What a token rule costs: milliseconds to judge one block, and its share of a round."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch

from antiphon.drawing import Randomness, draw_rows
from antiphon.rules.catalogue import rules
from antiphon.rules.evidence import Evidence
from antiphon.rules.judge import judge

COMPOSITIONS = {
    "exact": ("exact", "", ""),
    "lenience": ("lenience", "", ""),
    "typical": ("typical", "", ""),
    "cactus": ("cactus", "", ""),
    "mentored": ("mentored", "", ""),
    "ears": ("ears", "", ""),
    "fuzzy": ("fuzzy", "", ""),
    "topk": ("topk", "", ""),
    "ensemble": ("ensemble", "", ""),
    "cascade": ("cascade", "", ""),
    "contrastive": ("contrastive", "", ""),
    "exact, rescue fly": ("exact", "fly", ""),
    "exact, rescue kl-judge": ("exact", "kl-judge", ""),
    "exact, rescue fuzzy": ("exact", "fuzzy", ""),
    "exact, rescue topk": ("exact", "topk", ""),
    "exact, veto entropy": ("exact", "", "entropy/target=1/draft=1"),
}


@dataclass(frozen=True, slots=True)
class RuleCost:
    """Seconds to judge a block; the median, and what it is beyond the exact rule's."""

    name: str
    seconds: float
    extra: float


def rule_costs(vocab_size: int, gamma: int, repeats: int = 15) -> list[RuleCost]:
    """Time every rule on blocks of `gamma` tokens from random, peaked distributions.

    Half of p is q's, so that blocks are accepted about as far as those of a good draft are.
    Rules take turns, block by block.
    """
    generator = torch.Generator().manual_seed(0)
    times: dict[str, list[float]] = {name: [] for name in COMPOSITIONS}
    composed = {name: rules(*texts) for name, texts in COMPOSITIONS.items()}
    for repeat in range(repeats + 1):
        logits = 3 * torch.randn(gamma + 1, vocab_size, generator=generator)
        own = 3 * torch.randn(gamma, vocab_size, generator=generator)
        p, q = logits.softmax(-1), ((logits[:-1] + own) / 2).softmax(-1)
        tokens = torch.tensor(draw_rows(q, Randomness(repeat).uniforms(gamma)))
        for name, chosen in composed.items():
            began = time.perf_counter()
            judge(chosen, Evidence(tokens, p, q, p, q), Randomness(repeat))
            if repeat:  # The first round warms up.
                times[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(each) for name, each in times.items()}
    return [
        RuleCost(name, seconds, seconds - medians["exact"]) for name, seconds in medians.items()
    ]
