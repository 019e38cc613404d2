"""A language model whose forward is one graph over plain inputs; what runs the graph differs."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from antiphon.models.base import Extension, Scores
from antiphon.models.compiled.layers import WATCHED, Layer, windows_of
from antiphon.models.compiled.layout import STEP, Inputs, Piece, lay, passes
from antiphon.models.compiled.prefix import Prefixes
from antiphon.models.compiled.slots import SlotPool, SlotStorage
from antiphon.models.tree import KVTree
from antiphon.models.watch import attention_weights


class GraphModel(ABC):
    """A `LoadedModel` over a graph.

    Args:
        config: the transformers configuration.
        name: what messages call it.
        vocab_size: real tokens; the rest of a padded table is cut off.
        precision: of its linears.
        layers: what each layer's attention does.
        eos_token_ids: what its generation config names.
    """

    def __init__(
        self,
        config: Any,
        name: str,
        vocab_size: int,
        precision: str,
        layers: Sequence[Layer],
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self.config = config.get_text_config()
        self.name = name
        self.vocab_size = vocab_size
        self.context_length = int(self.config.max_position_embeddings)
        self.precision = precision
        self.device = torch.device("cpu")  # Unless a subclass says otherwise.
        self.eos_token_ids = eos_token_ids
        self._layers = tuple(layers)
        self._windows = windows_of(layers)
        self.step = STEP
        self.slots = self.new_slots()
        self.prefixes = Prefixes()

    @abstractmethod
    def new_slots(self) -> SlotPool:
        """An empty cache of the right shape."""

    @abstractmethod
    def run(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Logits, hidden states and queries as `graph.TreeForward` gives them; they stay valid.

        New keys and values are in the slots ``inputs.own`` afterwards.
        """

    def twin(self) -> Any:
        other = copy.copy(self)
        other.slots = other.new_slots()
        other.prefixes = Prefixes()
        return other

    @property
    def layers(self) -> int:
        return len(self._layers)

    def new_tree(self, capacity: int) -> KVTree:
        tree = KVTree(SlotStorage(self.slots, capacity))
        self.prefixes.add(tree)
        return tree

    @torch.no_grad()
    def forward(self, asks: Sequence[Extension]) -> list[Scores]:
        answers = [_Answer(ask, ask.grow()) for ask in asks]
        for pieces in passes(asks, self.prefixes.reading()):
            self._pass(pieces, answers)
        return [answer.scores() for answer in answers]

    def _pass(self, pieces: Sequence[Piece], answers: Sequence[_Answer]) -> None:
        logits, hidden, queries = self.run(lay(pieces, self._windows, self.step))
        row = start = 0
        for piece in pieces:
            answer, rows = answers[piece.index], len(piece.rows)
            answer.logits.append(logits[row : row + rows, : self.vocab_size].float())
            if piece.ask.hidden:
                answer.hidden.append(hidden[row : row + rows])
            if piece.ask.attention is not None:
                mine = queries[:, :, start : start + piece.count]
                answer.weights.append(self._watched(piece, mine))
            row, start = row + rows, start + piece.count

    def _watched(self, piece: Piece, queries: torch.Tensor) -> torch.Tensor:
        """Attention weights ``[layers, count, S]`` of the last layers; see `Capture`."""
        capture = piece.ask.attention
        assert capture is not None
        if capture.layers > min(WATCHED, self.layers):
            raise ValueError(
                f"a compiled model shows the attention of its last {min(WATCHED, self.layers)} "
                f"layers, not {capture.layers}: use --engine eager"
            )
        numbers = torch.from_numpy(piece.numbers).to(self.device)
        slots = piece.ask.tree.slots
        found = []
        for layer in range(self.layers - capture.layers, self.layers):
            keys = self.slots.buffer[2 * layer].index_select(1, numbers)
            known = self._layers[layer]
            seen = piece.visible(known.window)
            weights = attention_weights(
                queries[layer - self.layers], keys, seen, known.scaling, known.softcap, capture
            )
            found.append(torch.nn.functional.pad(weights, (0, slots - weights.shape[1])))
        return torch.stack(found)


class _Answer:
    """The scores of one ask in the making."""

    def __init__(self, ask: Extension, nodes: range) -> None:
        self.ask, self.nodes = ask, nodes
        self.logits: list[torch.Tensor] = []
        self.hidden: list[torch.Tensor] = []
        self.weights: list[torch.Tensor] = []

    def scores(self) -> Scores:
        return Scores(
            logits=_joined(self.logits),
            nodes=self.nodes,
            hidden=_joined(self.hidden) if self.ask.hidden else None,
            attention=torch.cat(self.weights, 1) if self.weights else None,
        )


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
