"""A draft's head for the most frequent tokens alone: fewer bytes to read in every draft pass.

After FR-Spec (Zhao et al. 2025, arXiv 2502.14856). In a small model of a large vocabulary the
head is a quarter of all weights, and most of its rows are words that are hardly ever written.
Tokens it lacks have the logit ``-inf``: q is 0 there, so every method stays as exact as it was,
and the target alone proposes them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from antiphon.errors import UserError


class ShortHead(nn.Module):
    """``[..., W]`` to logits ``[..., V]``, ``-inf`` but for the tokens kept.

    Args:
        head: the whole head, ``V`` outputs.
        tokens: the ids that are kept.
    """

    def __init__(self, head: nn.Linear, tokens: Iterable[int]) -> None:
        super().__init__()
        ids = torch.tensor(sorted(tokens), device=head.weight.device)
        self.out_features = head.out_features
        self.register_buffer("ids", ids, persistent=False)
        biased = head.bias is not None
        self.head = nn.Linear(head.in_features, len(ids), bias=biased, device="meta")
        # A copy: the embedding may share the whole weight, and keeps it.
        self.head.weight = nn.Parameter(head.weight.detach()[ids], requires_grad=False)
        if biased:
            self.head.bias = nn.Parameter(head.bias.detach()[ids], requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        some = self.head(x)
        logits: torch.Tensor = some.new_full((*some.shape[:-1], self.out_features), float("-inf"))
        return logits.index_copy_(-1, self.get_buffer("ids"), some)


def shorten(module: Any, tokens: Iterable[int]) -> None:
    """Give a `PreTrainedModel` a head for some tokens alone."""
    module.set_output_embeddings(ShortHead(module.get_output_embeddings(), tokens))


def ranked(tokenizer: Any, path: Path) -> tuple[int, ...]:
    """The ids of the tokens of a text, the most frequent first, the lower id on ties.

    Args:
        path: a text file, or a ``.jsonl`` file, of which every string counts.

    Raises:
        UserError: for a file that cannot be read.
    """
    counts: Counter[int] = Counter()
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                texts = _strings(json.loads(line)) if path.suffix == ".jsonl" else [line]
                for text in texts:
                    counts.update(tokenizer(text, add_special_tokens=False).input_ids)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read as text ({error}): give --draft-vocab N:FILE a text or JSONL"
        ) from error
    return tuple(sorted(counts, key=lambda token: (-counts[token], token)))


def _strings(value: Any) -> Iterator[str]:
    """Every string inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)
