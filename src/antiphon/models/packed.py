"""Quantised models on disk: packing 8-bit weights takes a minute, reading them back seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from antiphon.cache import cache_home, versions, whole
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
    whole(file, lambda partial: torch.save(module, partial))


def stored(found: Source, precision: str) -> Path:
    """The file that holds, or would hold, the packed model."""
    form = kernel(precision).__name__
    made_by = versions("torch", "transformers")
    name = found.mark(precision, form, fused.blocks(), FORMAT, *made_by)
    return cache_home() / "packed" / f"{name}.pt"
