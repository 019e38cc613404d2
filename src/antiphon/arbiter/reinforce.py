"""Reinforcement: rollouts whose mismatch decisions are drawn, rewarded by the final answer.

REINFORCE with a baseline from the rollouts of the same problem (with their spread divided out:
GRPO, arXiv 2402.03300). Only decisions at mismatches carry gradient; both language models are
frozen and decode greedily.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.nn import functional

from antiphon.api import make_engine
from antiphon.arbiter.mine import Miner
from antiphon.arbiter.policy import Policy
from antiphon.checkpoint import digest, load, save
from antiphon.drawing import derived_seed
from antiphon.engine import Engine
from antiphon.errors import UserError
from antiphon.eval.task import Problem
from antiphon.methods.cospec import Fixed, Rollout
from antiphon.models.pair import ModelPair
from antiphon.params import SamplingParams
from antiphon.result import Result


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to reinforce.

    Attributes:
        steps: policy updates.
        problems, rollouts: of each update: problems, and rollouts of each.
        rate: of Adam.
        speed: reward for speed: this times tokens per target pass, beside 1 for a right answer.
        entropy, kl: weights of the entropy bonus, and of the divergence from the warm start.
        normalise: divide advantages by the spread of their group.
        every: updates between validations.
        patience: validations without a better one after which training ends.
        gamma: draft tokens a round.
        seed: of the order and of all lots.
    """

    steps: int = 200
    problems: int = 8
    rollouts: int = 8
    rate: float = 1e-3
    speed: float = 0.02
    entropy: float = 0.003
    kl: float = 0.01
    normalise: bool = True
    every: int = 20
    patience: int = 3
    gamma: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "problems", "every", "patience", "gamma"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: give a whole number >= 1")
        if self.rate <= 0:
            raise UserError(f"rate is {self.rate}: give a number above 0")
        if self.rollouts < 2:
            raise UserError("a group needs two rollouts at least, to be compared with each other")


@dataclass(frozen=True, slots=True)
class Update:
    """What one update saw: mean reward, share right, tokens a target pass, share kept."""

    step: int
    reward: float
    right: float
    tokens_per_pass: float
    kept: float
    validation: float | None


def reinforce(
    recipe: Recipe,
    miner: Miner,
    pair: ModelPair,
    train: Sequence[Problem],
    held: Sequence[Problem],
    policy: Policy,
    checkpoint: Path,
    told: Callable[[Update], None] = lambda _: None,
) -> Policy:
    """Train on from a warm start; the policy that validates best is returned.

    A run that was stopped goes on from its checkpoint, to the same weights as an unbroken one.

    Args:
        held: problems to validate on; with none, the last policy is returned.

    Raises:
        UserError: for a checkpoint that was begun with other settings, problems or warm start.
    """
    warm = deepcopy(policy)
    optimiser = torch.optim.Adam(policy.parameters(), lr=recipe.rate)
    best = {name: value.clone() for name, value in policy.state_dict().items()}
    highest, idle, first = -1.0, 0, 0
    begun = digest(
        replace(recipe, steps=1, patience=1),
        [problem.id for problem in (*train, *held)],
        *policy.state_dict().values(),
    )
    state = load(checkpoint, begun, restart=False)
    if state is not None:
        policy.load_state_dict(state["policy"])
        optimiser.load_state_dict(state["optimiser"])
        best, highest = state["best"], state["highest"]
        idle, first = state["idle"], state["step"]
    engine = make_engine(pair, batch=miner.batch)
    for step in range(first, recipe.steps):
        if idle >= recipe.patience:
            break
        chosen = _chosen(train, recipe, step)
        update, loss = _update(recipe, miner, pair, engine, policy, warm, chosen, step)
        if loss is not None:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        validation = None
        if held and (step + 1) % recipe.every == 0:
            validation = validate(miner, pair, engine, policy, held, recipe)
            idle = 0 if validation > highest else idle + 1
            if validation > highest:
                highest = validation
                best = {name: value.clone() for name, value in policy.state_dict().items()}
        told(Update(step, *update, validation))
        save(
            checkpoint,
            begun,
            {
                "policy": policy.state_dict(),
                "optimiser": optimiser.state_dict(),
                "best": best,
                "highest": highest,
                "idle": idle,
                "step": step + 1,
            },
        )
    if held and highest >= 0:
        policy.load_state_dict(best)
    return policy.eval()


def _update(
    recipe: Recipe,
    miner: Miner,
    pair: ModelPair,
    engine: Engine,
    policy: Policy,
    warm: Policy,
    problems: Sequence[Problem],
    step: int,
) -> tuple[tuple[float, float, float, float], torch.Tensor | None]:
    """Rollouts of one update, what they were like, and the loss; None: no decision was made."""
    decisions: dict[int, list[tuple[torch.Tensor, bool]]] = {}

    def hear(seed: int, found: torch.Tensor, kept: bool) -> None:
        decisions.setdefault(seed, []).append((found, kept))

    texts = [problem for problem in problems for _ in range(recipe.rollouts)]
    seeds = [derived_seed(recipe.seed, step, i) for i in range(len(texts))]
    wishes = [SamplingParams(max_tokens=miner.max_tokens, seed=seed) for seed in seeds]
    prompts = miner.prompts(pair, texts)
    ran = engine.generate(prompts, wishes, Rollout(policy, hear, recipe.gamma))
    results = [result for (result,) in ran]
    right, pace = map(torch.tensor, _outcomes(miner, texts, results))
    rewards = (right + recipe.speed * pace).view(-1, recipe.rollouts)
    gains = rewards - rewards.mean(1, keepdim=True)
    if recipe.normalise:
        gains = gains / (rewards.std(1, keepdim=True) + 1e-3)
    rows, kept, weights = [], [], []
    for seed, gain in zip(seeds, gains.flatten().tolist(), strict=True):
        for found, keep in decisions.get(seed, ()):
            rows.append(found)
            kept.append(float(keep))
            weights.append(gain)
    share = sum(kept) / max(len(kept), 1)
    seen = float(rewards.mean()), float(right.mean()), float(pace.mean()), share
    if not rows:
        return seen, None
    found, actions = torch.stack(rows), torch.tensor(kept)
    return seen, surrogate(policy, warm, found, actions, torch.tensor(weights), recipe)


def surrogate(
    policy: Policy,
    warm: Policy,
    found: torch.Tensor,
    actions: torch.Tensor,
    gains: torch.Tensor,
    recipe: Recipe,
) -> torch.Tensor:
    """The loss of some decisions: policy gradient, entropy bonus, divergence from the warm start.

    Args:
        found: features ``[M, F]``.
        actions: ``[M]``, 1 where the draft's token was kept.
        gains: advantages ``[M]``.
    """
    cross = functional.binary_cross_entropy_with_logits
    logits = policy(found)
    chance = logits.sigmoid()
    losses = cross(logits, actions, reduction="none")
    spread = cross(logits, chance, reduction="none")
    with torch.no_grad():
        before = warm(found)
    away = cross(before, chance, reduction="none") - spread
    return (losses * gains).mean() - recipe.entropy * spread.mean() + recipe.kl * away.mean()


def validate(
    miner: Miner,
    pair: ModelPair,
    engine: Engine,
    policy: Policy,
    problems: Sequence[Problem],
    recipe: Recipe,
) -> float:
    """Mean reward of greedy decisions at threshold 0.5."""
    prompts = miner.prompts(pair, problems)
    wishes = [SamplingParams(max_tokens=miner.max_tokens)] * len(prompts)
    ran = engine.generate(prompts, wishes, Fixed(policy, gamma=recipe.gamma))
    right, pace = _outcomes(miner, problems, [result for (result,) in ran])
    rewards = (r + recipe.speed * speed for r, speed in zip(right, pace, strict=True))
    return sum(rewards) / len(problems)


def _outcomes(
    miner: Miner, problems: Sequence[Problem], results: Sequence[Result]
) -> tuple[list[float], list[float]]:
    """What is rewarded: 1 or 0 for a right answer, and tokens per target pass."""
    right = [
        float(bool(miner.task.grade(problem, result.text).right))
        for problem, result in zip(problems, results, strict=True)
    ]
    counts = [result.statistics for result in results]
    return right, [c.completion_tokens / max(c.target_passes, 1) for c in counts]


def _chosen(problems: Sequence[Problem], recipe: Recipe, step: int) -> list[Problem]:
    """The problems of one update: pass after pass over all of them, each in an order of its own."""
    found: list[Problem] = []
    for place in range(step * recipe.problems, (step + 1) * recipe.problems):
        epoch, spot = divmod(place, len(problems))
        generator = torch.Generator().manual_seed(recipe.seed * 100_003 + epoch)
        order = torch.randperm(len(problems), generator=generator)
        found.append(problems[int(order[spot])])
    return found
