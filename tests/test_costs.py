"""Pass costs: measured once, kept in a profile, measured again when that is spoilt."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.toys import TableModel

from antiphon import costs
from antiphon.models import fused


def test_costs_are_measured_once_per_machine_and_model(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ANTIPHON_CACHE", str(tmp_path))
    model = TableModel(5, context_length=100)
    first = costs.measured(model, "float32")
    passes = len(model.passes)
    assert set(first.by_rows) == {1, 2, 4, 8, 16, 32}
    assert costs.measured(model, "float32") == first
    assert len(model.passes) == passes
    costs.measured(model, "int8")
    assert len(model.passes) > passes
    passes = len(model.passes)
    monkeypatch.setattr(fused, "version", lambda: "of other operations")
    costs.measured(model, "float32")
    assert len(model.passes) > passes

    (profile, *_rest) = (tmp_path / "costs").iterdir()
    for file in (tmp_path / "costs").iterdir():
        file.write_text("{torn")
    again = costs.measured(model, "float32")
    assert set(again.by_rows) == set(first.by_rows)
    assert profile.exists()


def test_a_read_only_home_costs_a_measurement_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("ANTIPHON_CACHE", str(blocked))
    assert costs.measured(TableModel(5), "float32").by_rows
