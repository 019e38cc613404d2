"""The real pair, from its GGUF files: loading, equality in float32, and quantised drafts."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.api import generate
from antiphon.methods import Autoregressive, Speculative
from antiphon.models.pair import LoadOptions, load_pair
from antiphon.params import SamplingParams

pytestmark = [pytest.mark.real, pytest.mark.slow]
QUESTION = "Natalia sold 48 clips in April and half as many in May. How many in both months?"


def test_greedy_speculation_on_gguf_files_is_the_targets_own_text(
    real_pair_files: tuple[Path, Path],
) -> None:
    target, draft = map(str, real_pair_files)
    options = LoadOptions(dtype="float32", draft_quant="int8")
    pair = load_pair(target, draft, options)
    params = SamplingParams(max_tokens=24)
    plain = generate(pair, QUESTION, Autoregressive(), params)
    fast = generate(pair, QUESTION, Speculative(gamma=4), params)
    assert fast.token_ids == plain.token_ids
    assert fast.statistics.target_passes < plain.statistics.target_passes
    assert "<|" not in plain.text
