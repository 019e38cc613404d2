"""A graph compiled by OpenVINO: fast where the CPU has AVX-512 or VNNI (extra `cpu`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from antiphon.models.compiled.layout import Inputs
from antiphon.models.compiled.model import GraphModel
from antiphon.models.compiled.slots import SlotPool
from antiphon.models.compiled.store import Stored, home, stored
from antiphon.models.source import Source


class OpenVINOModel(GraphModel):
    """See `GraphModel`.

    Args:
        converted: from `store.stored`.
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
        self._compiled = _compile(converted.folder / "model.xml", precision, threads)
        super().__init__(
            config, name, vocab_size, precision, converted.layers, converted.eos_token_ids
        )

    def new_slots(self) -> SlotPool:
        # A request holds the graph's inputs and outputs, so it belongs to a cache.
        self._request = self._compiled.create_infer_request()
        self._bound = -1
        shape = self._compiled.inputs[-1].partial_shape
        return SlotPool(len(self._layers), shape[0].get_length(), shape[2].get_length())

    def run(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        arrays = inputs.arrays()
        if self._bound != self.slots.version:
            for index, layer in enumerate(self.slots.buffer.numpy()):
                self._request.set_input_tensor(len(arrays) + index, _shared(layer))
            self._bound = self.slots.version
        for index, array in enumerate(arrays):
            self._request.set_input_tensor(index, _shared(array))
        self._request.infer()
        logits, hidden, new, queries = (
            torch.from_numpy(self._request.get_output_tensor(i).data) for i in range(4)
        )
        self.slots.write(inputs.own, new)
        # The next pass writes to the same memory.
        return logits.clone(), hidden.clone(), queries.clone()


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
    return OpenVINOModel(converted, found.config, found.title, vocab_size, precision, threads)


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
