"""Converted models on disk: made once per model, precision and version, then read in seconds."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from antiphon.cache import cache_home, whole_folder
from antiphon.errors import UserError
from antiphon.models import source
from antiphon.models.compiled.graph import Traceable, traceable
from antiphon.models.compiled.layers import Layer
from antiphon.models.source import Source

FORMAT = 1
"""Rises when what the graph takes or gives changes."""
INT4_GROUP = 64
PRECISIONS = ("float32", "bfloat16", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Stored:
    """A converted model.

    Attributes:
        folder: holds ``model.xml`` and ``model.bin``.
        layers: what each layer's attention does.
        eos_token_ids: what the model's generation config names.
    """

    folder: Path
    layers: tuple[Layer, ...]
    eos_token_ids: tuple[int, ...]


def stored(found: Source, precision: str, say: Callable[[str], None] = lambda _: None) -> Stored:
    """The converted model, from this machine's store or converted now.

    Raises:
        UserError: where the `cpu` extra is missing, or the precision is not one of OpenVINO's.
    """
    if precision not in PRECISIONS:
        raise UserError(
            f"precision is {precision!r}: with --engine openvino choose {', '.join(PRECISIONS)}"
        )
    folder = home() / key(found, precision)
    if not (folder / "meta.json").is_file():
        say(f"converting {found.name} to {precision} for OpenVINO, once for this machine")
        _make(found, precision, folder)
    meta = json.loads((folder / "meta.json").read_text())
    return Stored(folder, tuple(Layer(**layer) for layer in meta["layers"]), tuple(meta["eos"]))


def home() -> Path:
    """Where converted models and compiled kernels are kept."""
    return cache_home() / "openvino"


def key(found: Source, precision: str) -> str:
    """Names a conversion by what went into it."""
    versions = [
        f"{name} {_version(name)}" for name in ("openvino", "nncf", "torch", "transformers")
    ]
    return found.mark(precision, FORMAT, *versions)


def _make(found: Source, precision: str, folder: Path) -> None:
    module = source.load(found, torch.float32, torch.device("cpu"))
    ready = traceable(module, fused=False)
    graph = _converted(ready)
    eos = source.eos_tokens(module)
    graph = _compressed(graph, precision)
    with whole_folder(folder) as partial:
        import openvino as ov

        ov.save_model(graph, partial / "model.xml", compress_to_fp16=False)
        meta = {
            "name": found.name,
            "precision": precision,
            "eos": eos,
            "layers": [asdict(layer) for layer in ready.layers],
        }
        (partial / "meta.json").write_text(json.dumps(meta, indent=1))


def _converted(ready: Traceable) -> Any:
    """An `openvino.Model` with free sizes."""
    import openvino as ov

    windows = len(ready.forward.windows)
    with torch.no_grad(), warnings.catch_warnings():
        # Tracing warns of every Python branch on a shape; ours are fixed per model.
        warnings.simplefilter("ignore")
        graph = ov.convert_model(ready.forward, example_input=ready.example)
    free = [[1, -1], [1, -1], [-1], [-1], [-1], [-1], *[[-1, -1, -1]] * windows]
    free += [[ready.key_heads, -1, ready.head_dim]] * (2 * len(ready.layers))
    shapes = {port: ov.PartialShape(size) for port, size in zip(graph.inputs, free, strict=True)}
    graph.reshape(shapes)
    return graph


def _compressed(graph: Any, precision: str) -> Any:
    if precision in ("float32", "bfloat16"):
        return graph
    import nncf

    if precision == "int8":
        return nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_ASYM)
    return nncf.compress_weights(
        graph, mode=nncf.CompressWeightsMode.INT4_ASYM, ratio=1.0, group_size=INT4_GROUP
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:
        raise UserError(f"--engine openvino needs {name}: pip install 'antiphon[cpu]'") from None
