"""The library example of the README runs and does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"


def test_the_library_example_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    result = names["result"]
    assert result.text
    assert len(result.provenance) == len(result.token_ids)
    assert result.statistics.mean_acceptance_length >= 1
