"""The page at ``/``: one file without a build step or outside assets."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources


@cache
def _template() -> str:
    return resources.files("antiphon.serve").joinpath("page.html").read_text(encoding="utf-8")


def page(name: str, methods: list[str], default: str, example: str) -> str:
    """The page for a pair and what it offers; `example` is a prompt to begin with."""
    offers = {"name": name, "methods": methods, "default": default, "example": example}
    return _template().replace('"OFFERS"', json.dumps(offers).replace("<", "\\u003c"))
