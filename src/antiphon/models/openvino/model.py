"""A language model that runs as one compiled OpenVINO graph on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from antiphon.models.base import Extension, Scores
from antiphon.models.hf import model_name
from antiphon.models.openvino.graph import WATCHED
from antiphon.models.openvino.layout import Piece, lay, passes
from antiphon.models.openvino.slots import SlotPool, SlotStorage
from antiphon.models.openvino.store import Stored, home, stored
from antiphon.models.source import Source
from antiphon.models.tree import KVTree
from antiphon.models.watch import attention_weights


class OpenVINOModel:
    """A `LanguageModel` over a compiled graph.

    Args:
        converted: from `store.stored`.
        config: the transformers configuration.
        name: what messages call it.
        vocab_size: real tokens; the rest of a padded table is cut off.
        precision: of the weights; "bfloat16" and "float32" also of the arithmetic.
        threads: of a pass.
    """

    def __init__(
        self,
        converted: Stored,
        config: Any,
        name: str,
        vocab_size: int,
        precision: str,
        threads: int,
    ) -> None:
        self.config = config.get_text_config()
        self.name = name
        self.vocab_size = vocab_size
        self.context_length = int(self.config.max_position_embeddings)
        self.precision = precision
        self.device = torch.device("cpu")
        self.eos_token_ids = converted.eos_token_ids
        self._layers = converted.layers
        windows = {layer.window for layer in converted.layers}
        self._windows = sorted(windows, key=lambda window: window or 0)
        self.compiled = _compile(converted.folder / "model.xml", precision, threads)
        self.own()

    def own(self) -> None:
        """Make what belongs to this model alone: the cache, and the graph's inputs and outputs."""
        self.request = self.compiled.create_infer_request()
        shape = self.compiled.inputs[-1].partial_shape
        self.slots = SlotPool(self.layers, shape[0].get_length(), shape[2].get_length())
        self._bound = -1

    def twin(self) -> OpenVINOModel:
        other = copy.copy(self)
        other.own()
        return other

    @property
    def layers(self) -> int:
        return len(self._layers)

    def new_tree(self, capacity: int) -> KVTree:
        return KVTree(SlotStorage(self.slots, capacity))

    @torch.no_grad()
    def forward(self, asks: Sequence[Extension]) -> list[Scores]:
        answers = [_Answer(ask, ask.grow()) for ask in asks]
        for pieces in passes(asks):
            self._pass(pieces, answers)
        return [answer.scores() for answer in answers]

    def _pass(self, pieces: Sequence[Piece], answers: Sequence[_Answer]) -> None:
        laid = lay(pieces, self._windows)
        self._bind()
        for index, array in enumerate(laid.arrays()):
            self.request.set_input_tensor(index, _shared(array))
        self.request.infer()
        logits, hidden, new, queries = (
            torch.from_numpy(self.request.get_output_tensor(i).data) for i in range(4)
        )
        self.slots.write(laid.own, new)
        row = start = 0
        for piece in pieces:
            answer, rows = answers[piece.index], len(piece.rows)
            answer.logits.append(logits[row : row + rows, : self.vocab_size].clone())
            if piece.ask.hidden:
                answer.hidden.append(hidden[row : row + rows].clone())
            if piece.ask.attention is not None:
                mine = queries[:, :, start : start + piece.count]
                answer.weights.append(self._watched(piece, mine))
            row, start = row + rows, start + piece.count

    def _bind(self) -> None:
        """Point the graph at the cache's buffer, which moves when it grows."""
        if self._bound == self.slots.version:
            return
        first = 6 + len(self._windows)
        for index, layer in enumerate(self.slots.buffer.numpy()):
            self.request.set_input_tensor(first + index, _shared(layer))
        self._bound = self.slots.version

    def _watched(self, piece: Piece, queries: torch.Tensor) -> torch.Tensor:
        """Attention weights ``[layers, count, S]`` of the last layers; see `Capture`."""
        capture = piece.ask.attention
        assert capture is not None
        if capture.layers > min(WATCHED, self.layers):
            raise ValueError(
                f"--engine openvino shows the attention of the last {min(WATCHED, self.layers)} "
                f"layers, not {capture.layers}: use --engine torch"
            )
        numbers = torch.from_numpy(piece.numbers)
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


def load(
    found: Source,
    precision: str,
    vocab_size: int,
    say: Callable[[str], None] = lambda _: None,
) -> OpenVINOModel:
    """Convert a model, if it was not yet, and compile it.

    Args:
        precision: one of `store.PRECISIONS`.
        vocab_size: real tokens.
        say: is told before a conversion, which takes a while.

    Raises:
        UserError: see `store.stored`.
    """
    converted = stored(found, precision, say)
    threads = torch.get_num_threads()
    name = model_name(found.name)
    return OpenVINOModel(converted, found.config, name, vocab_size, precision, threads)


def _compile(file: Path, precision: str, threads: int) -> Any:
    import openvino as ov

    core = ov.Core()
    hint = "bf16" if precision == "bfloat16" else "f32"
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": hint,
        "CACHE_DIR": str(home() / "compiled"),
    }
    return core.compile_model(core.read_model(file), "CPU", settings)


def _shared(array: Any) -> Any:
    """An OpenVINO tensor over the array's own memory."""
    import openvino as ov

    return ov.Tensor(array, shared_memory=True)


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
