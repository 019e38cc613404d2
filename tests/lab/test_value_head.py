"""The value head: labels by the gold solution's sums, AUROC, and a head that learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon.errors import UserError
from antiphon.lab.problems import problem
from antiphon.lab.value_head import Report, ValueHead, auroc, fit, step_labels


def test_labels_follow_the_gold_sums() -> None:
    gold = problem("test", 0)
    assert step_labels(gold, gold.solution) == [True] * len(gold.steps)
    steps = list(gold.steps)
    steps[1] = "Something 1 + 1 = 2 else."
    assert step_labels(gold, "\n\n".join(steps)) == [True] + [False] * (len(steps) - 1)
    assert step_labels(gold, "\n\n".join(gold.steps[:2])) == [True, True]
    assert step_labels(gold, gold.solution + "\n\nMore.")[-1] is False
    assert step_labels(gold, "") == [False]


def test_auroc_counts_ties_half() -> None:
    scores = torch.tensor([0.9, 0.5, 0.5, 0.1])
    assert auroc(scores, torch.tensor([True, True, False, False])) == pytest.approx(0.875)
    assert auroc(-scores, torch.tensor([True, False, False, False])) == pytest.approx(0.0)


def test_fit_save_load(tmp_path: Path) -> None:
    torch.manual_seed(0)
    states = torch.randn(800, 12) * 3 + 1
    labels = states[:, 0].abs() > states[:, 1]
    head = fit(states, labels, epochs=40)
    with torch.inference_mode():
        scores = head(states)
    assert auroc(scores, labels) > 0.9
    head.save(tmp_path, Report(0.9, 1, 0.5, 800))
    with torch.inference_mode():
        assert torch.equal(ValueHead.load(tmp_path)(states), scores)
    with pytest.raises(UserError, match="antiphon train-reward"):
        ValueHead.load(tmp_path / "missing")
