"""Where this machine keeps what takes long to make: conversions, measurements, environments."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def cache_home() -> Path:
    """The folder ``ANTIPHON_CACHE``, or ``~/.cache/antiphon``."""
    given = os.environ.get("ANTIPHON_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "antiphon"


def mark(*parts: object) -> str:
    """20 hex digits: equal parts, equal mark."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:20]
