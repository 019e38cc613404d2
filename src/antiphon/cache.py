"""Where this machine keeps what takes long to make: conversions, measurements, environments."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

STALE = 24 * 60 * 60
"""Seconds after which nobody is still writing what is half written."""


def cache_home() -> Path:
    """The folder ``ANTIPHON_CACHE``, or ``~/.cache/antiphon``."""
    given = os.environ.get("ANTIPHON_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "antiphon"


def mark(*parts: object) -> str:
    """20 hex digits: equal parts, equal mark."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:20]


def versions(*names: str) -> list[str]:
    """What `mark` should know of libraries whose work is kept."""
    return [f"{name} {version(name)}" for name in names]


def whole(file: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file, whole or not at all; where there is no room nothing happens.

    Whatever else `write` raises goes on, and leaves no file either.
    """
    partial = file.with_suffix(f".{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _sweep(file.parent)
        write(partial)
        partial.replace(file)
    except OSError:
        pass  # The next start makes it again, nothing else.
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which then becomes `folder`, unless another process made that meanwhile.

    Where anything is raised, also in making it, it is gone, and `folder` is as it was.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
    try:
        yield partial
        if not folder.exists():
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(parent: Path) -> None:
    """Remove what processes that were killed have left half written."""
    for left in (*parent.glob(".partial-*"), *parent.glob("*.partial")):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime < STALE:
                continue
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


def remembered(kind: str, name: str, make: Callable[[], Any]) -> Any:
    """A JSON value from this machine's store, or made now and kept where there is room for it."""
    file = cache_home() / kind / f"{name}.json"
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        value = make()
    whole(file, lambda partial: partial.write_text(json.dumps(value)))
    return value
