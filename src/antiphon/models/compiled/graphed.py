"""Passes of a few fixed shapes, recorded as CUDA graphs and replayed.

A decoding pass on a GPU is hundreds of small kernels, and launching them from Python takes longer
than running them. A CUDA graph launches all of them at once, but for one shape and one set of
addresses: so passes are padded up to powers of two, their inputs are copied to where the recording
reads them, and the cache of keys and values stays where it is.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from antiphon.models import source
from antiphon.models.compiled.graph import traceable
from antiphon.models.compiled.layout import HIDDEN, Inputs
from antiphon.models.compiled.model import GraphModel
from antiphon.models.compiled.slots import SlotPool

LARGEST = 512
"""Tokens of the largest pass that is recorded: larger ones are bound by arithmetic."""
RECORDINGS = 64
"""How many are kept; the one that was not used for longest goes."""
SLOTS = 16384
"""Slots that the cache holds from the beginning: when it grows, all recordings are made anew."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A graph, the tensors it reads and those it writes."""

    graph: Any
    inputs: list[torch.Tensor]
    outputs: tuple[torch.Tensor, ...]


class GraphedModel(GraphModel):
    """See `GraphModel`. On the CPU the padded passes are run, but nothing is recorded.

    Args:
        module: a `PreTrainedModel` in eval mode, on its device.
    """

    def __init__(self, module: Any, name: str, vocab_size: int, precision: str) -> None:
        self._ready = traceable(module, fused=True)
        self._device: torch.device = module.device
        self._recordings: OrderedDict[tuple[int, ...], Recording] = OrderedDict()
        self._memory = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        super().__init__(
            module.config,
            name,
            vocab_size,
            precision,
            self._ready.layers,
            source.eos_tokens(module),
        )
        self.device = self._device

    def new_slots(self) -> SlotPool:
        self._bound = -1
        dtype = self._ready.example[-1].dtype
        ready = self._ready
        return SlotPool(
            len(ready.layers), ready.key_heads, ready.head_dim, dtype, self._device, lasting=SLOTS
        )

    def run(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """See `GraphModel`; the queries stay valid until the next call."""
        if self._bound != self.slots.version:
            self._past = list(self.slots.buffer)
            self._bound = self.slots.version
            self._recordings = OrderedDict()
        T, R = inputs.tokens.shape[1], len(inputs.rows)
        fits = T <= LARGEST
        arrays = [torch.from_numpy(a) for a in (padded(inputs) if fits else inputs).arrays()]
        self._ready.forward.single = len(inputs.masks[0]) == 1
        if fits and self._memory is not None:
            logits, hidden, new, queries = self._replay(arrays)
        else:
            logits, hidden, new, queries = self._forward([a.to(self._device) for a in arrays])
        self.slots.write(inputs.own, new[:, :, :T])
        return logits[:R].clone(), hidden[:R].clone(), queries[:, :, :T]

    def _forward(self, arrays: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        outputs: tuple[torch.Tensor, ...] = self._ready.forward(*arrays, *self._past)
        return outputs

    def _replay(self, arrays: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        shape = (int(self._ready.forward.single), *(n for a in arrays for n in a.shape))
        recording = self._recordings.pop(shape, None) or self._record(arrays)
        self._recordings[shape] = recording
        if len(self._recordings) > RECORDINGS:
            self._recordings.popitem(last=False)
        for place, array in zip(recording.inputs, arrays, strict=True):
            place.copy_(array, non_blocking=True)
        recording.graph.replay()
        return recording.outputs

    def _record(self, arrays: list[torch.Tensor]) -> Recording:
        inputs = [array.to(self._device) for array in arrays]
        # Libraries set themselves up in their first calls, which a recording must not contain.
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._forward(inputs)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            outputs = self._forward(inputs)
        return Recording(graph, inputs, outputs)


def padded(inputs: Inputs) -> Inputs:
    """The same pass in the next larger shape of powers of two; what is added is never looked at."""
    B, Q, S = inputs.masks[0].shape
    b, q, u = _up(B), _up(Q), _up(S - Q)
    slots = np.zeros((b, u), dtype=np.int64)
    slots[:B, : S - Q] = inputs.slots.reshape(B, S - Q)
    places = np.zeros((b, q), dtype=np.int64)
    places[:B, :Q] = inputs.source.reshape(B, Q)
    masks = []
    for old in inputs.masks:
        mask = np.full((b, q, u + q), HIDDEN, dtype=np.float32)
        mask[:B, :Q, : S - Q] = old[:, :, : S - Q]
        mask[:B, :Q, u : u + Q] = old[:, :, S - Q :]
        masks.append(mask)
    return Inputs(
        tokens=_longer(inputs.tokens[0])[None],
        positions=_longer(inputs.positions[0])[None],
        rows=_longer(inputs.rows),
        slots=slots.reshape(-1),
        source=places.reshape(-1),
        real=_longer(inputs.real // Q * q + inputs.real % Q),
        own=inputs.own,
        masks=tuple(masks),
    )


def _longer(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.pad(numbers, (0, _up(len(numbers)) - len(numbers)))


def _up(count: int) -> int:
    """The smallest power of two that is not below `count`."""
    return 1 << max(count - 1, 0).bit_length()
