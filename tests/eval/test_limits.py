from __future__ import annotations

import pytest

from antiphon.errors import UserError
from antiphon.eval.sandbox import Limits


@pytest.mark.parametrize(
    "wrong",
    [
        {"wall_seconds": 0},
        {"cpu_seconds": float("nan")},
        {"memory_bytes": 1.5e9},
        {"memory_bytes": 1000},
        {"processes": -1},
        {"output_bytes": True},
        {"file_bytes": "1"},
    ],
)
def test_a_senseless_limit_is_a_users_mistake(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(wrong))):
        Limits(**wrong)  # type: ignore[arg-type]
