"""Collects a pair's profile on a train split: entropies, acceptance, step scores, pass costs.

At each temperature the target answers the problems; then both models read each answer once
more, and what they thought at every position of it is kept as quantiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from antiphon.api import machine_and_precision, make_engine, pair_costs
from antiphon.detokenizer import Detokenizer
from antiphon.errors import UserError
from antiphon.eval.reread import Reread, keep_beginning
from antiphon.eval.runner import Plan, answers
from antiphon.methods.boundary import ends_step
from antiphon.methods.grounding import Grounding
from antiphon.models.base import Capture, Extension, LanguageModel
from antiphon.models.pair import ModelPair
from antiphon.models.tree import KVTree
from antiphon.profile import LEVELS, Profile, Quantiles, Seen
from antiphon.rules.evidence import entropy

LAYERS, THRESHOLD = 3, 0.01
"""SpecGuard's attention rollout, as its paper has it."""
FEWEST = 100
"""Positions below which quantiles would say nothing."""


def calibrate(
    plan: Plan,
    pair: ModelPair,
    temperatures: Sequence[float],
    told: Callable[[], None] = lambda: None,
    costs: bool = True,
    boundary: str = "blank-line",
) -> Profile:
    """Measure a pair.

    Args:
        plan: problems to collect on, with one method that writes the target's own answers.
        temperatures: to look at; the plan's own does not count.
        told: is called after every problem.
        costs: also measure this machine's pass costs.
        boundary: where steps end.

    Raises:
        UserError: the pair has no draft, or too little was written.
    """
    if pair.draft is None:
        raise UserError("a profile is about a pair: give --draft PATH")
    seen = {
        f"{temperature:g}": look(plan, pair, temperature, boundary, told)
        for temperature in temperatures
    }
    target_seconds, draft_seconds = _pass_costs(pair) if costs else ({}, {})
    return Profile(
        pair=pair.fingerprint,
        description=pair.description,
        source=f"{plan.task.name}, {plan.data.source}, {len(plan.data.problems)} problems",
        seen=seen,
        machine=machine_and_precision(pair) if costs else "",
        target_seconds=target_seconds,
        draft_seconds=draft_seconds,
        boundary=boundary,
    )


def _pass_costs(pair: ModelPair) -> tuple[dict[str, float], dict[str, float]]:
    measured = pair_costs(pair, fresh=True)
    assert measured.draft is not None
    target, draft = (
        {str(rows): seconds for rows, seconds in each.by_rows.items()}
        for each in (measured.target, measured.draft)
    )
    return target, draft


def look(
    plan: Plan, pair: ModelPair, temperature: float, boundary: str, told: Callable[[], None]
) -> Seen:
    """What both models think along the target's answers at one temperature."""
    plan = replace(plan, params=replace(plan.params, temperature=temperature))
    (label,) = plan.methods
    engine = make_engine(pair, batch=plan.batch)
    sums: dict[str, list[float]] = {}
    kept: list[KVTree] = []
    for answer in answers(plan, pair, engine, label, plan.seeds[0], plan.data.problems):
        prompt, output = plan.prompting.reread(pair.tokenizer, answer)
        if prompt and output:
            kept = kept or keep_beginning(prompt, pair.target, pair.draft)
            for name, values in positions(pair, prompt, output, temperature, boundary).items():
                sums.setdefault(name, []).extend(values)
        told()
    if len(sums.get("acceptance", ())) < FEWEST:
        raise UserError(f"fewer than {FEWEST} tokens were written: give more problems (--limit)")
    acceptance, agreement = (float(np.mean(sums.pop(n))) for n in ("acceptance", "agreement"))
    return Seen(
        acceptance=acceptance if temperature > 0 else agreement,
        agreement=agreement,
        quantities={name: _quantiles(values) for name, values in sums.items() if values},
    )


def positions(
    pair: ModelPair,
    prompt: tuple[int, ...],
    output: tuple[int, ...],
    temperature: float,
    boundary: str,
) -> dict[str, list[float]]:
    """What both models thought at each of the output's ``T`` positions, teacher-forced.

    At temperature 0: at temperature 1. Of steps the log-probabilities are those before temperature.
    """
    assert pair.draft is not None
    raw = [Reread(model, prompt, output).logprobs for model in (pair.target, pair.draft)]
    p, q = ((x / (temperature or 1.0)).log_softmax(-1) for x in raw)
    overlap = torch.minimum(p.exp(), q.exp()).sum(-1)
    agree = p.argmax(-1) == q.argmax(-1)
    found = {"acceptance": _list(overlap), "agreement": _list(agree.float())}
    for name, values in (("target_entropy", entropy(p.exp())), ("draft_entropy", entropy(q.exp()))):
        found[name] = _list(values)
        found[f"{name}_mismatch"] = _list(values[~agree])
    chosen = torch.tensor(output, device=p.device)[:, None]
    of_target, of_draft = (x.gather(-1, chosen)[:, 0].tolist() for x in raw)
    ends = step_ends(pair.tokenizer, prompt, output, boundary)
    bounds = list(zip([0, *ends[:-1]], ends, strict=True))
    found["step_min_logprob"] = [min(of_target[a:b]) for a, b in bounds]
    found["step_mean_logprob"] = [float(np.mean(of_target[a:b])) for a, b in bounds]
    found["draft_step_min_logprob"] = [min(of_draft[a:b]) for a, b in bounds]
    found["draft_step_min_grounding"] = groundings(pair.draft, prompt, output, bounds)
    return found


def groundings(
    model: LanguageModel,
    prompt: tuple[int, ...],
    output: tuple[int, ...],
    bounds: Sequence[tuple[int, int]],
) -> list[float]:
    """The smallest grounding of each step's tokens, the steps before it accepted."""
    capture = Capture(min(LAYERS, getattr(model, "layers", 0)), THRESHOLD)
    if not capture.layers:
        return []
    tree = model.new_tree(len(prompt) + len(output))
    (scores,) = model.forward([Extension(model, tree, prompt + output, attention=capture)])
    assert scores.attention is not None
    grounding = Grounding(capture.layers)
    start = len(prompt)
    grounding.absorb(scores.attention[:, :start, :start])
    found = []
    for a, b in bounds:
        step = scores.attention[:, start + a : start + b, : start + b]
        found.append(float(grounding.score(step).min()))
        grounding.absorb(step)
    return found


def step_ends(
    tokenizer: Any, prompt: tuple[int, ...], output: tuple[int, ...], boundary: str
) -> list[int]:
    """Where each step of the output ends, as a token count."""
    detokenizer = Detokenizer(tokenizer, prompt)
    text, ends = "", []
    for place, token in enumerate(output, 1):
        text += detokenizer.push(token)
        if ends_step(text, boundary):
            ends.append(place)
            text = ""
    if not ends or ends[-1] < len(output):
        ends.append(len(output))
    return ends


def _list(values: torch.Tensor) -> list[float]:
    return [float(value) for value in values]


def _quantiles(values: list[float]) -> Quantiles:
    sample: npt.NDArray[np.float64] = np.quantile(np.array(values), LEVELS)
    return Quantiles(tuple(float(f"{value:.6g}") for value in sample), len(values))
