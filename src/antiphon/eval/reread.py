"""A finished text, read once more by a model: what it thinks at every place of it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from antiphon.models.base import Extension, LanguageModel
from antiphon.models.tree import KVTree


class Reread:
    """One pass over a prompt and an output of ``T`` tokens.

    Args:
        hidden: also keep the hidden states.

    Attributes:
        logprobs: ``[T, V]`` before each output token, in nats.
        hidden: the last hidden states ``[T, W]`` there; None: not asked for.
    """

    def __init__(
        self,
        model: LanguageModel,
        prompt: tuple[int, ...],
        output: tuple[int, ...],
        hidden: bool = False,
    ) -> None:
        self.model = model
        text = prompt + output[:-1]
        # The last token, and another one in the place of every output token.
        self.tree = model.new_tree(len(text) + len(output))
        rows = tuple(range(len(prompt) - 1, len(text)))
        (scores,) = model.forward([Extension(model, self.tree, text, rows=rows, hidden=hidden)])
        self._nodes = [scores.nodes[row] for row in rows]
        self.logprobs = scores.logits.float().log_softmax(-1)
        self.hidden = scores.hidden

    def instead(self, places: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """The hidden states ``[M, W]`` after reading another token at each of some places."""
        ask = Extension(
            self.model,
            self.tree,
            tokens=tuple(tokens),
            parents=tuple(self._nodes[place] for place in places),
            rows=tuple(range(len(tokens))),
            hidden=True,
        )
        (scores,) = self.model.forward([ask])
        assert scores.hidden is not None
        return scores.hidden


def keep_beginning(tokens: tuple[int, ...], *models: LanguageModel | None) -> list[KVTree]:
    """Let models read a text; while the trees are held, others that begin alike do not again.

    Worked examples stand at the beginning of every prompt of a run.
    """
    trees = []
    for model in models:
        if model is not None:
            tree = model.new_tree(len(tokens))
            (scores,) = model.forward([Extension(model, tree, tokens)])
            tree.commit(scores.nodes[-1])
            trees.append(tree)
    return trees
