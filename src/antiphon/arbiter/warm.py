"""The warm start: supervised learning on mined branches, epoch by epoch, resumable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional

from antiphon.arbiter.features import NAMES
from antiphon.arbiter.mine import Branch, Mined
from antiphon.arbiter.policy import Policy
from antiphon.checkpoint import digest, load, save, unpacked
from antiphon.drawing import lot
from antiphon.errors import UserError

LABELS = ("gold", "target")
HELD_OUT = 8
"""One problem in so many is kept for validation."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to train.

    Attributes:
        epochs, batch, rate, decay: of AdamW.
        both_right: weight of mismatches where both branches are right, labelled "keep": keeping
            costs nothing there and is faster; 0 leaves them out.
        labels: "gold", whose branch is right; or "target", whether the draft's branch gives the
            answer the target's gives, as AutoJudge does (arXiv 2504.20039): at best as right as
            the target, and the baseline that shows what gold is worth.
        noise: standard deviation of what is added to the (standardised) features, so that many
            of them are not learnt by heart.
        seed: of the start, of the order and of the noise.
        width: hidden units of the policy; 0, a logistic regression, for few branches.
    """

    epochs: int = 60
    batch: int = 256
    rate: float = 2e-3
    decay: float = 1e-2
    both_right: float = 0.2
    noise: float = 0.0
    seed: int = 0
    labels: str = "gold"
    width: int = 64

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise UserError("epochs and batch are whole numbers >= 1")
        if not self.rate > 0 or not 0 <= self.both_right <= 1:
            raise UserError("rate is above 0, both_right a weight from 0 to 1")
        if self.labels not in LABELS:
            raise UserError(f"labels is {self.labels!r}: choose {', '.join(LABELS)}")
        if self.width < 0:
            raise UserError(f"width is {self.width}: give a number of hidden units, 0 for none")
        if not self.noise >= 0:
            raise UserError(f"noise is {self.noise!r}: give a number >= 0")


@dataclass(frozen=True, slots=True)
class Examples:
    """Mismatches as tensors: features ``[N, F]``, labels and weights ``[N]``."""

    features: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)


def split(
    mined: Sequence[Mined], recipe: Recipe, states: bool = False
) -> tuple[Examples, Examples]:
    """Training and validation examples; a problem is wholly on one side.

    Args:
        states: with the target's hidden states.

    Raises UserError where there is nothing to learn from.
    """
    sides: tuple[list[Branch], list[Branch]] = ([], [])
    for one in mined:
        sides[lot(one.problem) % HELD_OUT == 0].extend(one.branches)
    train, held = (examples(side, recipe, states) for side in sides)
    if not len(train) or not len(held) or not 0 < float(train.labels.mean()) < 1:
        raise UserError("too few branches that differ were mined: mine more problems")
    return train, held


def examples(branches: Sequence[Branch], recipe: Recipe, states: bool) -> Examples:
    """What there is to learn from branches; `states`: see `split`."""
    rate = _by_gold if recipe.labels == "gold" else _by_target
    rated = [(branch, *rate(branch, recipe)) for branch in branches]
    kept = [(branch, label, weight) for branch, label, weight in rated if weight > 0]
    return Examples(
        looked_at([branch for branch, *_ in kept], states),
        torch.tensor([float(label) for _, label, _ in kept]),
        torch.tensor([weight for *_, weight in kept]),
    )


def looked_at(branches: Sequence[Branch], states: bool) -> torch.Tensor:
    """The features ``[N, F]`` of mined branches; `states`: see `split`."""
    seen = torch.tensor([branch.features for branch in branches], dtype=torch.float32)
    if not states or not branches:
        return seen
    if not all(branch.states for branch in branches):
        raise UserError(
            "these branches were mined without hidden states: give --no-states, or mine into "
            "another folder"
        )
    return torch.cat([seen, torch.stack([unpacked(one.states) for one in branches])], dim=-1)


def _by_gold(branch: Branch, recipe: Recipe) -> tuple[bool, float]:
    """Label and weight: keep what is right; with neither right there is nothing to learn."""
    if branch.draft_right != branch.target_right:
        return branch.draft_right, 1.0
    return True, recipe.both_right if branch.draft_right else 0.0


def _by_target(branch: Branch, recipe: Recipe) -> tuple[bool, float]:
    """Label and weight: keep what ends in the target's answer, right or wrong."""
    if branch.same is not None:
        return branch.same, 1.0
    # Mined before answers were compared: known where one of the two is right.
    known = branch.draft_right or branch.target_right
    return branch.draft_right and branch.target_right, float(known)


def warm_start(
    recipe: Recipe,
    train: Examples,
    held: Examples,
    pair: str,
    checkpoint: Path,
    told: Callable[[int, float], None] = lambda *_: None,
) -> Policy:
    """Train a policy; the one with the smallest validation loss is returned.

    A run that was stopped goes on from its checkpoint, to the same weights as an unbroken one; a
    checkpoint of other examples or settings is begun anew.

    Args:
        checkpoint: file that holds the state after the last whole epoch.
        told: hears epoch and validation loss.
    """
    torch.manual_seed(recipe.seed)
    states = (train.features.shape[1] - len(NAMES)) // 2
    policy = Policy(pair, recipe.width, states)
    policy.standardise(train.features)
    optimiser = torch.optim.AdamW(policy.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    best = {name: value.clone() for name, value in policy.state_dict().items()}
    lowest, first = float("inf"), 0
    begun = digest(replace(recipe, epochs=1), train.features, train.labels, train.weights)
    state = load(checkpoint, begun, restart=True)
    if state is not None:
        policy.load_state_dict(state["policy"])
        optimiser.load_state_dict(state["optimiser"])
        best, lowest, first = state["best"], state["lowest"], state["epoch"]
    for epoch in range(first, recipe.epochs):
        generator = torch.Generator().manual_seed(recipe.seed * 100_003 + epoch)
        for rows in torch.randperm(len(train), generator=generator).split(recipe.batch):
            optimiser.zero_grad()
            features = train.features[rows]
            noise = torch.randn(features.shape, generator=generator) * policy.scale
            _loss(policy, train, rows, features + recipe.noise * noise).backward()
            optimiser.step()
        with torch.no_grad():
            loss = float(_loss(policy, held, torch.arange(len(held)), held.features))
        if loss < lowest:
            lowest = loss
            best = {name: value.clone() for name, value in policy.state_dict().items()}
        told(epoch, loss)
        save(
            checkpoint,
            begun,
            {
                "policy": policy.state_dict(),
                "optimiser": optimiser.state_dict(),
                "best": best,
                "lowest": lowest,
                "epoch": epoch + 1,
            },
        )
    policy.load_state_dict(best)
    return policy.eval()


def agreement(policy: Policy, held: Examples) -> float:
    """Share of held-out branches that differ on which the policy picks the right one.

    The paper's "agreement with oracle branch selection" (94.1 % there).
    """
    differ = held.weights == 1.0
    if not bool(differ.any()):
        return float("nan")
    with torch.no_grad():
        kept = policy(held.features[differ]) > 0
    return float((kept == held.labels[differ].bool()).float().mean())


def _loss(
    policy: Policy, examples: Examples, rows: torch.Tensor, features: torch.Tensor
) -> torch.Tensor:
    losses = functional.binary_cross_entropy_with_logits(
        policy(features), examples.labels[rows], reduction="none"
    )
    weights = examples.weights[rows]
    return (losses * weights).sum() / weights.sum()
