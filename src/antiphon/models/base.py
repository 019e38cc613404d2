"""What a decoder may ask of a language model, and what it gets back.

A decoding method never sees a batch: it asks for one `Extension` of one tree. The engine
collects the asks of all live requests and hands them to `LanguageModel.forward` at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch

from antiphon.models.tree import KVTree


@dataclass(frozen=True, slots=True)
class Capture:
    """A wish to see attention weights beside the logits.

    Attributes:
        layers: how many of the last layers.
        threshold: weights below it count as 0, head by head, before the heads are averaged.
        renormalise: scale what is left of each row to sum 1, head by head.
    """

    layers: int = 3
    threshold: float = 0.0
    renormalise: bool = False


@dataclass(frozen=True, slots=True)
class Extension:
    """An ask: append tokens to a tree and score some of them, in one forward pass.

    Attributes:
        model: the model to run.
        tree: the request's tree in that model.
        tokens: the ``T`` tokens to append.
        parents: the node each token hangs from (`KVTree.grow`); None: a chain from the tip.
        rows: which of the ``T`` tokens need logits; None: the last one only.
        hidden: also return the last hidden state at `rows`.
        attention: also return attention weights, of all ``T`` tokens.
    """

    model: LanguageModel
    tree: KVTree
    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    rows: tuple[int, ...] | None = None
    hidden: bool = False
    attention: Capture | None = None

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError("an extension needs at least one token")

    @property
    def wanted(self) -> tuple[int, ...]:
        """Indices into `tokens` of the rows that need logits, length ``R``."""
        return (len(self.tokens) - 1,) if self.rows is None else self.rows

    def check(self) -> None:
        """Raise ValueError for parents or rows that cannot be, before any tree has grown."""
        first, last = self.tree.next_node, self.tree.next_node + len(self.tokens)
        for index, parent in enumerate(self.parents or ()):
            if not first <= parent < first + index and not self.tree.has(parent):
                raise ValueError(f"token {index} hangs from {parent}, which is not in the tree")
        if self.parents is not None and len(self.parents) != last - first:
            raise ValueError(f"{len(self.parents)} parents for {len(self.tokens)} tokens")
        if not all(0 <= row < len(self.tokens) for row in self.wanted):
            raise ValueError(f"rows {self.wanted} are not all among {len(self.tokens)} tokens")
        if self.tree.length + len(self.tokens) > self.model.context_length and self.parents is None:
            raise ValueError(f"more tokens than {self.model.name}'s context holds")

    def grow(self) -> range:
        """Add the tokens to the tree; a model calls this once, before it computes."""
        parents = self.parents
        if parents is None:
            parents = self.tree.chain(self.tree.tip, len(self.tokens))
        return self.tree.grow(parents, self.tokens)


@dataclass(frozen=True, slots=True)
class Scores:
    """The answer to one `Extension`.

    Attributes:
        logits: float32 ``[R, V]``, the next-token logits after each wanted row.
        nodes: the names of the ``T`` new nodes.
        hidden: the last hidden state ``[R, W]`` before the output head, if asked for.
        attention: float32 ``[layers, T, S]``, head-averaged weights of the new tokens over all
            ``S`` slots of the tree, lowest layer first, if asked for.
    """

    logits: torch.Tensor
    nodes: range
    hidden: torch.Tensor | None = None
    attention: torch.Tensor | None = None


class LanguageModel(Protocol):
    """A causal language model over trees of tokens.

    Attributes:
        name: what error messages and traces call it.
        vocab_size: number of real tokens ``V``; logits have exactly this many columns, so a
            padded embedding table never yields a token the tokenizer does not know.
        context_length: the largest number of positions the model was made for.
    """

    name: str
    vocab_size: int
    context_length: int

    def new_tree(self, capacity: int) -> KVTree:
        """An empty tree with room for `capacity` slots before it has to grow."""
        ...

    def forward(self, asks: Sequence[Extension]) -> list[Scores]:
        """Extend all trees in one ragged pass; answers in the order of the asks.

        Each answer depends on its own tree alone.
        """
        ...


class LoadedModel(LanguageModel, Protocol):
    """A language model that was loaded from files.

    Attributes:
        config: its transformers text configuration.
        precision: of its linears, for profiles and messages.
        device: where it runs.
        layers: number of layers.
        eos_token_ids: what its generation config names as the end of a text.
    """

    config: Any
    precision: str
    device: torch.device
    eos_token_ids: tuple[int, ...]

    @property
    def layers(self) -> int: ...

    def twin(self) -> Self:
        """Another model over the same weights, with trees of its own."""
        ...
