"""What is kept is there whole or not at all, and what was left half written goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from antiphon.cache import STALE, whole, whole_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "a") as partial:
        (partial / "x").write_text("1")
        assert not (tmp_path / "a").exists()
    with pytest.raises(FileNotFoundError), whole_folder(tmp_path / "b") as partial:
        (partial / "such" / "x").write_text("1")
    assert names(tmp_path) == ["a"]
    with whole_folder(tmp_path / "a") as partial:
        (partial / "x").write_text("2")
    assert (tmp_path / "a" / "x").read_text() == "1"
    assert names(tmp_path) == ["a"]


def test_what_killed_processes_left_goes_in_a_day(tmp_path: Path) -> None:
    (tmp_path / ".partial-old").mkdir()
    (tmp_path / ".partial-new").mkdir()
    (tmp_path / "a.1.partial").write_text("")
    for name in (".partial-old", "a.1.partial"):
        long_ago = time.time() - STALE - 60
        os.utime(tmp_path / name, (long_ago, long_ago))
    whole(tmp_path / "a", lambda partial: partial.write_text("whole"))
    assert names(tmp_path) == [".partial-new", "a"]
    os.utime(tmp_path / ".partial-new", (0, 0))
    with whole_folder(tmp_path / "b"):
        pass
    assert names(tmp_path) == ["a", "b"]
