"""The page at ``/``, and of a stored trace: one file without a build step or outside assets."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def _template() -> str:
    return resources.files("antiphon.serve").joinpath("page.html").read_text(encoding="utf-8")


def page(name: str, methods: list[str], default: str, example: str) -> str:
    """The page for a pair and what it offers; `example` is a prompt to begin with."""
    return _filled({"name": name, "methods": methods, "default": default, "example": example})


def trace_page(name: str, texts: list[dict[str, Any]]) -> str:
    """The page of a stored trace.

    Args:
        texts: per sample its ``title``, ``tokens`` (text, who, logprob), ``statistics``,
            ``rounds`` and ``seed``, as the server's `antiphon` object has them.
    """
    return _filled({"name": name, "methods": [], "texts": texts})


def _filled(offers: dict[str, Any]) -> str:
    return _template().replace('"OFFERS"', json.dumps(offers).replace("<", "\\u003c"))
