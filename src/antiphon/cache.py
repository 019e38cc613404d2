"""Where this machine keeps what takes long to make: conversions, measurements, environments."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def cache_home() -> Path:
    """The folder ``ANTIPHON_CACHE``, or ``~/.cache/antiphon``."""
    given = os.environ.get("ANTIPHON_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "antiphon"


def mark(*parts: object) -> str:
    """20 hex digits: equal parts, equal mark."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:20]


def remembered(kind: str, name: str, make: Callable[[], Any]) -> Any:
    """A JSON value from this machine's store, or made now and kept where there is room for it."""
    file = cache_home() / kind / f"{name}.json"
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError):
        value = make()
    partial = file.with_suffix(f".{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(value))
        partial.replace(file)
    except OSError:
        partial.unlink(missing_ok=True)
    return value
