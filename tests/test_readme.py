"""The library examples of README and docs run and do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).parent.parent / "README.md"
LIBRARY = README.parent / "docs" / "library.md"


def examples(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def test_the_library_example_runs() -> None:
    (example,) = examples(README)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    result = names["result"]
    assert "The answer is 12." in result.text
    assert len(result.provenance) == len(result.token_ids)
    assert result.statistics.mean_acceptance_length >= 1


def test_the_examples_of_the_library_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("llguidance")
    names: dict[str, Any] = {}
    for example in examples(LIBRARY):
        exec(compile(example, "library.md", "exec"), names)
    said = capsys.readouterr().out
    assert "The answer is 12." in said
    assert '{"answer":' in said
