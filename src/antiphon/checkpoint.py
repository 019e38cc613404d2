"""What a training keeps on disk, each with what it was begun with, so that it can go on."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
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


def bind(note: Path, settings: Mapping[str, Any]) -> None:
    """Note how a folder's data was collected, so that none of other settings joins it.

    Raises UserError where the note there says something else.
    """
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
                f"{note}: was begun with {name} {held.get(name)!r}, not {value!r}: give the same, "
                "or another --out"
            )


def packed(states: torch.Tensor) -> str:
    """Hidden states of any shape as text, in float16; "" for none."""
    return base64.b64encode(states.half().cpu().numpy().tobytes()).decode()


def unpacked(text: str) -> torch.Tensor:
    """All numbers of hidden states ``[N]``, float32."""
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), np.float16).astype(np.float32))
