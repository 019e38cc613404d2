"""The lab: a tiny draft and target pair, the problems it was trained on, and the recipe.

The pair ships inside the package, so everything runs without a download.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from antiphon.errors import UserError
from antiphon.lab.problems import Problem

__all__ = ["Problem", "data_path", "pair_path", "problems", "profile_path"]

_HERE = Path(__file__).parent


def pair_path(which: str) -> Path:
    """The folder of a bundled model, ready for `from_pretrained`.

    Args:
        which: `target`, `draft`, `value_head` (rewards of steps) or `arbiter` (CoSpec's).
    """
    if which not in ("target", "draft", "value_head", "arbiter"):
        raise UserError(f"no bundled model {which!r}: choose target, draft, value_head or arbiter")
    return _HERE / "pair" / which


def profile_path() -> Path:
    """The bundled pair's profile."""
    return _HERE / "pair" / "profile.json"


def is_bundled(fingerprint: str | None) -> bool:
    """Whether a pair's fingerprint is the bundled pair's."""
    return fingerprint == _fingerprint()


@cache
def _fingerprint() -> str:
    # Every request of some methods asks, and the profile is long.
    return str(json.loads(profile_path().read_text(encoding="utf-8"))["pair"])


def data_path(split: str) -> Path:
    """The file of a bundled split: `test` (1,000), `calibration` (500) or `unseen` (200)."""
    path = _HERE / "data" / f"{split}.jsonl"
    if not path.is_file():
        raise UserError(f"no bundled split {split!r}: choose test, calibration or unseen")
    return path


def problems(split: str) -> list[Problem]:
    """The bundled problems of a split; see `data_path`."""
    with data_path(split).open(encoding="utf-8") as lines:
        return [Problem(**json.loads(line)) for line in lines]
