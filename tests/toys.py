"""Toy models whose every text can be enumerated, and the exact answer by summation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from antiphon.costs import PairCosts
from antiphon.engine import Engine, Vocabulary
from antiphon.methods.base import Models
from antiphon.models.base import Extension, Scores
from antiphon.models.tree import KVTree
from antiphon.params import SamplingParams
from antiphon.sampling import Context, distribution


class TableModel:
    """A `LanguageModel` that looks logits up by the last `order` tokens of a node's path.

    Args:
        vocab_size: number of tokens ``V``.
        seed: of the table; two seeds are two different models.
        order: tokens of context that matter.
        sharpness: standard deviation of the logits.
    """

    def __init__(
        self,
        vocab_size: int = 4,
        seed: int = 0,
        order: int = 3,
        sharpness: float = 1.5,
        context_length: int = 4096,
    ) -> None:
        self.name = f"table{seed}"
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.seed = seed
        self.order = order
        self.sharpness = sharpness
        self.passes: list[int] = []
        self._table: dict[tuple[int, ...], torch.Tensor] = {}

    def logits_after(self, text: Sequence[int]) -> torch.Tensor:
        key = tuple(text[-self.order :])
        if key not in self._table:
            stream = np.random.default_rng([self.seed, *(token + 1 for token in key)])
            row = stream.standard_normal(self.vocab_size) * self.sharpness
            self._table[key] = torch.tensor(row, dtype=torch.float32)
        return self._table[key]

    def new_tree(self, capacity: int) -> KVTree:
        return KVTree()

    def forward(self, asks: Sequence[Extension]) -> list[Scores]:
        self.passes.append(sum(len(ask.tokens) for ask in asks))
        scores = []
        for ask in asks:
            nodes = ask.grow()
            paths = [ask.tree.path(nodes[row]) for row in ask.wanted]
            scores.append(Scores(torch.stack([self.logits_after(p) for p in paths]), nodes))
        return scores


class SpelledTokens:
    """Detokenizes token ids to letters: 0 is "a", 1 is "b", ..."""

    def push(self, token_id: int) -> str:
        return chr(ord("a") + token_id)

    def flush(self) -> str:
        return ""


LETTERS = Vocabulary(detokenizer=lambda _prompt: SpelledTokens(), eos_token_ids=frozenset())


def toy_engine(
    target: TableModel,
    draft: TableModel | None = None,
    batch: int = 16,
    eos: Sequence[int] = (),
    costs: PairCosts | None = None,
) -> Engine:
    vocabulary = Vocabulary(LETTERS.detokenizer, frozenset(eos))
    return Engine(Models(target, draft, costs), vocabulary, max_batch=batch)


def exact_outputs(
    model: TableModel, prompt: tuple[int, ...], params: SamplingParams, eos: Sequence[int] = ()
) -> dict[tuple[int, ...], float]:
    """Probability of every output of `model`: the reference, computed by enumeration."""
    outputs: dict[tuple[int, ...], float] = {}

    def walk(context: Context, probability: float) -> None:
        text = context.output
        if len(text) == params.max_tokens or (text and text[-1] in eos):
            outputs[text] = outputs.get(text, 0.0) + probability
            return
        logits = model.logits_after(context.prompt + text)[None]
        for token, chance in enumerate(distribution(logits, params, [context])[0].tolist()):
            if chance > 0:
                walk(context.then((token,)), probability * chance)

    walk(Context(prompt), 1.0)
    return outputs


def all_texts(vocab_size: int, length: int) -> Iterator[tuple[int, ...]]:
    return itertools.product(range(vocab_size), repeat=length)
