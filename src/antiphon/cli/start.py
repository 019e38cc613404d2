"""A short way from the command to its first token: most of a start is importing torch."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def quieten() -> None:
    """Loading reports, progress bars and advice of transformers do not belong in our output."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TQDM_DISABLE", "1")


@contextmanager
def importing() -> Iterator[None]:
    """Around the imports of a command, where torch is among them and not yet there.

    What is imported stays: the garbage collector need not look at it, neither meanwhile nor when
    the process ends, where that alone takes half a second.
    """
    if "torch" in sys.modules:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.freeze)
