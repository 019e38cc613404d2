"""Checkpoints of a training, each with what it was begun with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from antiphon.cache import mark
from antiphon.errors import UserError


def save(path: Path, begun: str, state: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        begun: names settings and data, see `digest`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state | {"begun": begun}, partial)
    partial.replace(path)


def load(path: Path, begun: str, restart: bool) -> dict[str, Any] | None:
    """The state to go on from; None: there is none.

    Args:
        restart: forget a checkpoint that was begun with something else, instead of refusing it.

    Raises:
        UserError: for such a checkpoint.
    """
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, weights_only=True)
    if state.get("begun") == begun:
        return state
    if restart:
        return None
    raise UserError(
        f"{path} was begun with other settings, problems or another warm start: delete it to "
        "begin anew, or give another --out"
    )


def digest(*parts: object) -> str:
    """A short name of settings and tensors."""
    return mark(
        *(
            part.detach().cpu().numpy().tobytes() if isinstance(part, torch.Tensor) else part
            for part in parts
        )
    )


def bind(path: Path, settings: Mapping[str, Any]) -> None:
    """Note beside a file of mined problems how they are put, so that no other ones join them.

    Raises UserError where the file was mined with other settings.
    """
    note = path.with_name("mining.json")
    if not note.exists():
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_suffix(".partial")
        partial.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        partial.replace(note)
        return
    held = json.loads(note.read_text(encoding="utf-8"))
    for name, value in settings.items():
        if held.get(name) != value:
            raise UserError(
                f"{note}: was mined with {name} {held.get(name)!r}, not {value!r}: give the same, "
                "or another --out"
            )
