"""What mined branches say, and how much of it an arbiter learns.

    python scripts/branches.py --arbiter FOLDER --record docs/records/branches.json

FOLDER is one of `antiphon train-arbiter`. Shares of whose branch is right; what a chooser that knew
gold would answer, with one of the mined branches a problem; and, cross-validated over problems, how
well a warm start tells the draft's right branches from wrong ones: agreement with gold where one
branch alone is right, AUROC, calibration, what each feature is worth, and all of it again from
fewer problems.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import torch

from antiphon.arbiter import mine, warm
from antiphon.arbiter.features import NAMES
from antiphon.arbiter.mine import Branch, Mined
from antiphon.arbiter.policy import Policy
from antiphon.drawing import lot
from antiphon.eval.statistics import wilson
from antiphon.lab.value_head import auroc

BOUNDS = (0.0, 0.05, 0.2, 0.5, 0.8, 1.01)
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
PARTS = (4, 2, 1)
"""The curve takes one problem in so many."""
SHUFFLES = 10


def shares(mined: Sequence[Mined]) -> dict[str, float]:
    """Of all mismatches that were run: whose branch ends in gold."""
    found = [branch for one in mined for branch in one.branches]
    count = {(True, False): 0, (False, True): 0, (True, True): 0, (False, False): 0}
    for branch in found:
        count[branch.draft_right, branch.target_right] += 1
    names = ("only the draft's", "only the target's", "both", "neither")
    return {name: n / len(found) for name, n in zip(names, count.values(), strict=True)}


def bound(mined: Sequence[Mined]) -> dict[str, Any]:
    """Problems right as they stand, and with the best one of the mined branches."""
    right = [one.right for one in mined]
    could = [one.right or any(branch.draft_right for branch in one.branches) for one in mined]
    return {
        name: {"right": sum(hits) / len(hits), "interval": wilson(sum(hits) / len(hits), len(hits))}
        for name, hits in (("target", right), ("one branch by gold", could))
    }


def trained(mined: Sequence[Mined], recipe: warm.Recipe, states: bool) -> tuple[Policy, float]:
    """A warm start on these problems, and the seconds it took."""
    train, held = warm.split(mined, recipe, states)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        policy = warm.warm_start(recipe, train, held, "", Path(folder) / "checkpoint.pt")
        return policy, time.perf_counter() - began


def crossed(
    mined: Sequence[Mined],
    recipe: warm.Recipe,
    states: bool,
    folds: int,
    kept: Callable[[Mined], bool] = lambda _: True,
) -> Trial:
    """A policy for each fold, which has not seen it, and the branches it is tried on."""
    # The warm start's own split looks at the lots of byte 0.
    policies, tests, seconds = [], [], 0.0
    for fold in range(folds):
        others = [one for one in mined if lot(one.problem, 1) % folds != fold and kept(one)]
        policy, took = trained(others, recipe, states)
        policies.append(policy)
        own = (one for one in mined if lot(one.problem, 1) % folds == fold)
        tests.append([branch for one in own for branch in one.branches])
        seconds += took / folds
    return Trial(policies, tests, states, seconds)


@dataclass(frozen=True, slots=True)
class Trial:
    """Policies, and the branches none of them has seen."""

    policies: Sequence[Policy]
    tests: Sequence[Sequence[Branch]]
    states: bool
    seconds: float

    @property
    def branches(self) -> list[Branch]:
        """All branches, in the order of `chances`."""
        return [branch for test in self.tests for branch in test]

    @property
    def differ(self) -> torch.Tensor:
        """Where one branch alone is right."""
        return torch.tensor([one.draft_right != one.target_right for one in self.branches])

    @property
    def labels(self) -> torch.Tensor:
        """Whether the draft's branch is right."""
        return torch.tensor([one.draft_right for one in self.branches])

    @torch.no_grad()
    def chances(
        self, changed: Callable[[torch.Tensor], torch.Tensor] = lambda found: found
    ) -> torch.Tensor:
        """The chance each draft token is given."""
        found = [
            policy(changed(warm.looked_at(test, self.states))).sigmoid()
            for policy, test in zip(self.policies, self.tests, strict=True)
            if test
        ]
        return torch.cat(found)

    def quality(self) -> dict[str, float]:
        """Where one branch alone is right: agreement with gold at even odds, and AUROC."""
        chances, labels = self.chances()[self.differ], self.labels[self.differ]
        agreed = float(((chances > 0.5) == labels).float().mean())
        low, high = wilson(agreed, len(labels))
        return {"agreement": agreed, "low": low, "high": high, "auroc": auroc(chances, labels)}

    def choices(self) -> list[dict[str, float]]:
        """What each threshold keeps, and what that wins and loses, in shares of all mismatches."""
        chances, rows = self.chances(), []
        right = torch.tensor([one.target_right for one in self.branches])
        for threshold in THRESHOLDS:
            kept = chances > threshold
            won, lost = kept & self.labels & ~right, kept & ~self.labels & right
            shares = {"kept": kept, "won": won, "lost": lost}
            means = {name: float(each.float().mean()) for name, each in shares.items()}
            rows.append({"threshold": threshold, **means})
        return rows


def shuffled(columns: slice, seed: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Features with some columns dealt out anew among the rows."""

    def change(found: torch.Tensor) -> torch.Tensor:
        order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed))
        dealt = found.clone()
        dealt[:, columns] = found[order][:, columns]
        return dealt

    return change


def importance(trial: Trial, whole: float) -> dict[str, float]:
    """AUROC lost where a feature is shuffled."""
    columns = {name: slice(i, i + 1) for i, name in enumerate(NAMES)}
    if trial.states:
        columns["the target's hidden states"] = slice(len(NAMES), None)
    lost, differ = {}, trial.differ
    labels = trial.labels[differ]
    for name, at in columns.items():
        areas = [auroc(trial.chances(shuffled(at, i))[differ], labels) for i in range(SHUFFLES)]
        lost[name] = whole - sum(areas) / len(areas)
    return dict(sorted(lost.items(), key=lambda item: -item[1]))


def calibration(chances: torch.Tensor, labels: torch.Tensor) -> list[dict[str, float]]:
    """How often the draft was right, by the chance it was given."""
    rows = []
    for low, high in itertools.pairwise(BOUNDS):
        inside = (chances >= low) & (chances < high)
        if inside.any():
            given, was = float(chances[inside].mean()), float(labels[inside].float().mean())
            rows.append({"low": low, "n": int(inside.sum()), "given": given, "was": was})
    return rows


def main() -> None:
    """Read, train, try, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arbiter", type=Path, required=True)
    parser.add_argument("--no-states", action="store_true")
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    mined = mine.read(options.arbiter / "branches.jsonl")
    settings = {name: getattr(options, name) for name in ("noise", "width", "epochs", "seed")}
    recipe, states = warm.Recipe(**settings), not options.no_states
    trial = crossed(mined, recipe, states, options.folds)
    whole, differ = trial.quality(), trial.differ
    curve = []
    for part in PARTS:
        taken = {one.problem for one in mined if lot(one.problem, 2) % part == 0}
        some = crossed(mined, recipe, states, options.folds, lambda one, t=taken: one.problem in t)
        curve.append({"problems": len(taken), "seconds": some.seconds, **some.quality()})
    note = options.arbiter / "mining.json"
    pair = json.loads(note.read_text())["pair"] if note.exists() else "the bundled pair"
    record = {
        "branches": shares(mined),
        "mismatches": len(trial.branches),
        "problems": len(mined),
        "bound": bound(mined),
        "states": states,
        "differ": int(differ.sum()),
        "always_target": float((~trial.labels[differ]).float().mean()),
        "quality": whole,
        "choices": trial.choices(),
        "calibration": calibration(trial.chances()[differ], trial.labels[differ]),
        "importance": importance(trial, whole["auroc"]),
        "curve": curve,
        "seconds": trial.seconds,
    }
    print(json.dumps(record, indent=1))
    common.keep(options, pair, record)


if __name__ == "__main__":
    main()
