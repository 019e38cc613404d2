"""A traced model as it is kept: its graph, its weights, and what a pass has to know of it.

With this on disk a start needs neither transformers' modeling code, which takes seconds to
import, nor tracing; the weights are mapped, so that they take no time and no memory twice.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from antiphon.cache import cache_home, versions, whole_folder
from antiphon.models import fused, packed
from antiphon.models.compiled.layers import Layer
from antiphon.models.kernels import kernel
from antiphon.models.source import Source

FORMAT = 1
"""Rises when what a graph takes or gives changes."""
LARGE = 4096
"""Bytes of a constant from which on it is a weight, and no part of the graph."""


@dataclass(frozen=True, slots=True)
class Program:
    """A graph over a cache of slots.

    Attributes:
        graph: see `graph.TreeForward`, but that `weights` come last.
        layers: what each layer's attention does.
        key_heads, head_dim, dtype: of the cache.
        eos_token_ids: what the model's generation config names.
        writes: the graph writes to its cache.
        another: traces the graph for several trees at a time, where that is one of its own.
    """

    graph: Any
    weights: tuple[torch.Tensor, ...]
    layers: tuple[Layer, ...]
    key_heads: int
    head_dim: int
    dtype: torch.dtype
    eos_token_ids: tuple[int, ...]
    writes: bool
    another: Callable[[], Any] | None = None


def recall(found: Source, precision: str, say: Callable[[str], None]) -> Program | None:
    """The program that was kept of these very weights, in this precision, on this machine."""
    folder = folder_of(found, precision)
    if not folder.is_dir():
        return None
    try:
        meta = json.loads((folder / "meta.json").read_text())
        weights = torch.load(folder / "weights.pt", mmap=True, weights_only=True)
        with warnings.catch_warnings():  # Of TorchScript's age, see `traced`.
            warnings.simplefilter("ignore")
            graph = torch.jit.load(str(folder / "graph.pt"))
    except Exception:
        say(f"{folder} cannot be read: it is made anew")
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return Program(
        graph=graph,
        weights=tuple(weights),
        layers=tuple(Layer(**layer) for layer in meta["layers"]),
        key_heads=meta["key_heads"],
        head_dim=meta["head_dim"],
        dtype=getattr(torch, meta["dtype"]),
        eos_token_ids=tuple(meta["eos"]),
        writes=True,
    )


def keep(
    program: Program, found: Source, precision: str, say: Callable[[str], None] = lambda _: None
) -> bool:
    """Store a program whole or not at all; False: it can't be, or takes too much room."""
    small = packed.small(found)
    worth = small or kernel(precision).kept
    if not worth or not program.writes or not _plain(program.graph.graph):
        return False
    folder = folder_of(found, precision)
    if not small:
        say(f"keeping the {precision} form of {found.name} in {folder.parent}")
    meta = {
        "name": found.name,
        "precision": precision,
        "layers": [asdict(layer) for layer in program.layers],
        "key_heads": program.key_heads,
        "head_dim": program.head_dim,
        "dtype": str(program.dtype).removeprefix("torch."),
        "eos": program.eos_token_ids,
    }
    try:
        with whole_folder(folder) as partial, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph, weights = hoisted(program.graph)
            graph.save(str(partial / "graph.pt"))
            torch.save(weights, partial / "weights.pt")
            (partial / "meta.json").write_text(json.dumps(meta, indent=1))
    except (OSError, RuntimeError):  # No room: the next start traces again, nothing else.
        return False
    return True


def folder_of(found: Source, precision: str) -> Path:
    """Where a program is kept, or would be: named by all that went into it."""
    form = kernel(precision).__name__
    made_by = versions("torch", "transformers")
    name = found.mark(precision, form, fused.blocks(), fused.version(), FORMAT, *made_by)
    return cache_home() / "traced" / name


def hoisted(frozen: Any) -> tuple[Any, list[torch.Tensor]]:
    """A frozen graph as a function whose last arguments are its large constants, and those."""
    graph = frozen.graph.copy()
    weights: list[torch.Tensor] = []
    for node in _constants(graph):
        if _large(node):
            given = graph.addInput()
            given.setType(node.output().type())
            node.output().replaceAllUsesWith(given)
            weights.append(node.t("value"))
            node.destroy()
    graph.eraseInput(0)  # The frozen module itself, of which nothing is left.
    return torch._C._create_function_from_graph("forward", graph), weights


def _constants(graph: Any) -> Iterable[Any]:
    return list(graph.findAllNodes("prim::Constant", True))


def _large(node: Any) -> bool:
    if not node.hasAttribute("value") or node.kindOf("value") != "t":
        return False
    return bool(node.t("value").nbytes >= LARGE)


def _plain(graph: Any) -> bool:
    """Whether no weight is in another library's form, which a graph keeps to itself."""
    return not any(node.output().type().kind() == "ClassType" for node in _constants(graph))
