"""A graph traced by TorchScript over packed linears: no Python between its operations.

On a small model Python's share of a pass is as large as that of the linears.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from antiphon.models import fused, source
from antiphon.models.compiled.graph import NAME, Traceable, TreeForward, small_inputs, traceable
from antiphon.models.compiled.layout import Inputs
from antiphon.models.compiled.model import GraphModel
from antiphon.models.compiled.program import Program
from antiphon.models.compiled.slots import SlotPool


class NotTraceableError(Exception):
    """The module takes ways that depend on values, so a trace of it computes something else."""


class TracedModel(GraphModel):
    """See `GraphModel`.

    With the operations of `models.fused` one graph serves every pass; it reads the cache where it
    lies and writes to it. Without them, one text alone has a graph of its own, with no padding.

    Args:
        program: from `traced`, or one that was kept.
    """

    def __init__(
        self, program: Program, config: Any, name: str, vocab_size: int, precision: str
    ) -> None:
        self._program = program
        self._graphs = {True: program.graph}
        self._past: list[torch.Tensor] = []
        self._bound = -1
        super().__init__(config, name, vocab_size, precision, program.layers, program.eos_token_ids)
        if program.writes:
            self.step = 1

    def new_slots(self) -> SlotPool:
        self._bound = -1
        known = self._program
        return SlotPool(len(known.layers), known.key_heads, known.head_dim, known.dtype)

    def run(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        if self._bound != self.slots.version:
            self._past = [*self.slots.buffer, *self._program.weights]
            self._bound = self.slots.version
        if self._program.writes:
            return self._graph(True, inputs.written())
        logits, hidden, new, queries = self._graph(len(inputs.masks[0]) == 1, inputs.arrays())
        self.slots.write(inputs.own, new)
        return logits, hidden, queries

    def _graph(self, single: bool, arrays: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        if single not in self._graphs:  # Who decodes one text at a time needs no other graph.
            assert self._program.another is not None
            self._graphs[single] = self._program.another()
        given = [torch.from_numpy(array) for array in arrays]
        # TorchScript would spend the first two passes on optimising what operations of ours leave
        # nothing to gain of: tenths of a second of every start.
        optimise = not self._program.writes
        with torch.jit.optimized_execution(optimise):  # type: ignore[attr-defined]
            outputs: tuple[torch.Tensor, ...] = self._graphs[single](*given, *self._past)
        return outputs


def traced(module: Any) -> Program:
    """Write down what a module does.

    Args:
        module: a `PreTrainedModel` on the CPU, in eval mode, its linears packed.

    Raises:
        NotTraceableError: where the traced graph does not give what the module gives.
    """
    writes = fused.ready() and module.dtype in fused.DTYPES
    ready = traceable(module, fused=True, writes=writes)
    return Program(
        graph=_traced(ready, single=True),
        weights=(),
        layers=ready.layers,
        key_heads=ready.key_heads,
        head_dim=ready.head_dim,
        dtype=ready.example[-1].dtype,
        eos_token_ids=source.eos_tokens(module),
        writes=writes,
        another=None if writes else partial(_traced, ready, single=False),
    )


@torch.no_grad()
def _traced(ready: Traceable, single: bool) -> Any:
    ready.forward.single = single
    ready.forward.module.set_attn_implementation(NAME)  # Others may have used the module since.
    config = ready.forward.module.config.get_text_config()
    if any(getattr(config, name, None) for name in ("num_experts", "num_local_experts")):
        raise NotTraceableError("experts are chosen token by token")
    with fused.fused(ready.forward.module), warnings.catch_warnings():
        # Tracing warns of every Python branch on a shape (ours are fixed per model), and PyTorch
        # of TorchScript's age: its successors either need a compiler or run Python.
        warnings.simplefilter("ignore")
        try:
            graph = torch.jit.trace(ready.forward, ready.example, check_trace=False)
            graph = torch.jit.freeze(graph.eval())
        except RuntimeError as error:
            # oneDNN's packed weights, for one, can by themselves be no constants of a graph.
            raise NotTraceableError(str(error).splitlines()[0]) from error
        _check(ready.forward, graph, ready)
    return graph


def _check(forward: TreeForward, graph: Any, ready: Traceable) -> None:
    """Compare both on other tokens and sizes than those that were traced."""
    masks = len(forward.windows)
    T, U = 5, 11
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 50, (1, T), generator=generator)
    inputs = (
        *small_inputs(tokens, U, forward.writes),
        *[torch.zeros(1, T, U + T) for _ in range(masks)],
        *[
            torch.randn(past.shape, generator=generator).to(past)
            for past in ready.example[-2 * len(ready.layers) :]
        ],
    )
    for ours, theirs in zip(graph(*inputs), forward(*inputs), strict=True):
        if not torch.allclose(ours, theirs, atol=1e-3, rtol=1e-3):
            raise NotTraceableError("the traced graph computes something else")
