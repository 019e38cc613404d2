"""RSD: its two ends are the draft's and the target's own text; rewards from head and model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bundled import PROBLEMS, pair, run
from transformers import LlamaConfig, LlamaForSequenceClassification

from antiphon.api import encode
from antiphon.errors import UserError
from antiphon.methods import RSD, Autoregressive, DraftOnly
from antiphon.methods.rewards import load


@pytest.mark.parametrize(("delta", "other"), [(0.0, DraftOnly()), (1.1, Autoregressive())])
def test_the_ends_are_draft_and_target(delta: float, other: Any) -> None:
    for mine, theirs in zip(run(RSD(delta=delta)), run(other), strict=True):
        assert mine.token_ids == theirs.token_ids
        assert set(mine.provenance) == set(theirs.provenance)


def test_a_middle_delta_mixes_both_and_does_not_depend_on_the_batch() -> None:
    wish = {"temperature": 0.8}
    together, alone = (run(RSD(delta=0.6), batch, **wish) for batch in (8, 1))
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert {who for result in together for who in result.provenance} == {"draft", "target"}
    notes = [record.notes for result in together for record in result.rounds]
    assert all((note["score"] >= 0.6) != note["fired"] for note in notes)


def test_what_is_told_of_a_token_is_the_targets() -> None:
    (result, *_) = run(RSD(delta=0.5))
    ids = torch.tensor(encode(pair(), PROBLEMS[0].question) + result.token_ids)
    from transformers import AutoModelForCausalLM

    from antiphon.lab import pair_path

    module = AutoModelForCausalLM.from_pretrained(pair_path("target"), dtype=torch.float32)
    with torch.no_grad():
        logits = module(ids[None]).logits[0].log_softmax(-1)
    start = len(ids) - len(result.token_ids)
    expected = [float(logits[i - 1, ids[i]]) for i in range(start, len(ids))]
    assert result.logprobs == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(
    ("accept", "expected"), [("binary", 1.0), ("clipped", 0.75), ("logistic", 0.6225)]
)
def test_the_chance_of_a_step(accept: str, expected: float) -> None:
    assert RSD(accept=accept).chance(0.75) == pytest.approx(expected, abs=1e-4)


def test_a_reward_model_of_its_own(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=pair().target.vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
    )
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "reward")
    reward = load(str(tmp_path / "reward"), pair().target, None)
    assert 0 < reward((1, 2, 3), None) < 1
    assert reward((1, 2, 3), None) != reward((1, 2, 4), None)
    results = run(RSD(reward=str(tmp_path / "reward"), delta=0.5))
    assert all(result.text for result in results)
    config.num_labels = 2
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "classifier")
    with pytest.raises(UserError, match="labels"):
        load(str(tmp_path / "classifier"), pair().target, None)


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    for fields, fix in (
        ({"accept": "odd"}, "binary"),
        ({"slope": 0}, "slope"),
        ({"longest": 0}, "longest"),
        ({"delta": float("nan")}, "delta"),
    ):
        with pytest.raises(UserError, match=fix):
            RSD(**fields)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="reward=FOLDER"):
        load("", pair().target, "another pair")
    with pytest.raises(UserError, match="no reward model"):
        load(str(tmp_path), pair().target, None)
