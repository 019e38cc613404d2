"""Prompt lookup: the draft is what followed the same few tokens earlier in the text.

Saxena 2023 (prompt lookup decoding); no model, no passes. Deterministic, so q is one-hot.
"""

from __future__ import annotations

import torch

from antiphon.request import Steps
from antiphon.rules.base import Block
from antiphon.sampling import Context


class NGram:
    """Looks the last tokens up in the prompt and output so far, longest match first.

    Args:
        vocab_size: width ``V`` of the one-hot rows.
        longest, shortest: lengths of the suffix to look up.
        device: where the one-hot rows live.
    """

    def __init__(
        self,
        vocab_size: int,
        longest: int = 4,
        shortest: int = 2,
        device: torch.device | str = "cpu",
    ) -> None:
        self.vocab_size = vocab_size
        self.longest = longest
        self.shortest = shortest
        self.device = torch.device(device)

    def propose(self, context: Context, gamma: int) -> Steps[Block]:
        yield from ()
        tokens = self.lookup(context.prompt + context.output, gamma)
        q = torch.zeros(len(tokens), self.vocab_size, device=self.device)
        q[range(len(tokens)), list(tokens)] = 1.0
        return Block.chain(tokens, q)

    def settle(self, accepted: tuple[int, ...]) -> None:
        """Nothing to drop: there is no cache."""

    def lookup(self, text: tuple[int, ...], gamma: int) -> tuple[int, ...]:
        """At most `gamma` tokens that followed the most recent earlier match of the suffix."""
        for size in range(min(self.longest, len(text) - 1), self.shortest - 1, -1):
            suffix = text[-size:]
            for start in range(len(text) - size - 1, -1, -1):
                if text[start : start + size] == suffix:
                    return text[start + size : start + size + gamma]
        return ()
