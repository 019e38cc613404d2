"""Quantised models on disk: packing 8-bit weights takes a minute, reading them back seconds."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from antiphon.cache import cache_home
from antiphon.models import fused, linear, source
from antiphon.models.int8 import read_together
from antiphon.models.kernels import kernel
from antiphon.models.source import Source

QUANTISED = ("int8", "int4")
SMALLEST = 2**26
"""Models with fewer parameters are packed as fast as they are read."""
FORMAT = 2
"""Rises when packed linears change."""


def prepared(
    found: Source,
    precision: str,
    say: Callable[[str], None] = lambda _: None,
) -> Any:
    """The transformers module on the CPU, its linears packed; from this machine's store if there.

    Raises UserError as `source.load` does.
    """
    file = stored(found, precision)
    if file.is_file():
        try:
            with read_together():
                # Written by this very function, in the user's own cache.
                return torch.load(file, weights_only=False, mmap=True)
        except Exception:
            say(f"{file} cannot be read: it is made anew")
            file.unlink(missing_ok=True)
    dtype = linear.activation_dtype(precision)
    module = source.load(found, dtype, torch.device("cpu"))
    linear.prepare_linears(module, precision)
    return module


def small(found: Source) -> bool:
    """Whether a model is packed as fast as it is read, and takes next to no room."""
    return sum(found.parameters().values()) < SMALLEST


def keep(
    module: Any, found: Source, precision: str, say: Callable[[str], None] = lambda _: None
) -> None:
    """Store what `prepared` made, if it is of a kind that is worth it."""
    if not kernel(precision).kept or small(found):
        return
    file = stored(found, precision)
    if file.is_file():
        return
    say(f"keeping the {precision} form of {found.name} in {file.parent}")
    partial = file.with_suffix(f".{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(module, partial)
        partial.replace(file)
    except OSError:
        partial.unlink(missing_ok=True)  # No room: the next start packs again, nothing else.


def stored(found: Source, precision: str) -> Path:
    """The file that holds, or would hold, the packed model."""
    versions = [f"{name} {version(name)}" for name in ("torch", "transformers")]
    name = found.mark(precision, kernel(precision).__name__, fused.blocks(), FORMAT, *versions)
    return cache_home() / "packed" / f"{name}.pt"
