"""SpecGuard's premise: do a step's scores tell whether it is right?

    python scripts/premise.py --problems 600 --temperature 0.7 --record docs/records/premise.json
    python scripts/premise.py --answers RUN.jsonl --target PATH --draft PATH --profile PROFILE

On the bundled pair the draft writes solutions to training problems; a step counts while all before
it are right, and is right if it does the gold solution's sums. Of another pair the answers are read
that `antiphon eval` has recorded, and every step counts as right whose solution is. Prints the
AUROC of every score, of steps of all lengths and by thirds of their length, with bootstrap
intervals over problems.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import common
import numpy as np
import torch

from antiphon.api import encode, make_engine
from antiphon.eval.calibrate import groundings, step_ends
from antiphon.eval.outcome import graded, states_at
from antiphon.eval.reread import Reread, keep_beginning
from antiphon.lab import pair_path
from antiphon.lab.problems import Problem, problem
from antiphon.lab.value_head import ValueHead, auroc, step_labels
from antiphon.methods import DraftOnly, SpecGuard
from antiphon.methods.base import Models
from antiphon.methods.boundary import BOUNDARIES
from antiphon.methods.specguard import scaled
from antiphon.models.pair import ModelPair
from antiphon.params import SamplingParams
from antiphon.rules.evidence import divergence, entropy

FIRST = 10**9 + 2_000_000
RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Solution:
    """What was written, as token ids, and which of its first steps are right."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    labels: list[bool]


def of_the_lab(pair: ModelPair, count: int, temperature: float) -> list[Solution]:
    """The draft's solutions to training problems, up to the first wrong step."""
    gold: list[Problem] = [problem("train", FIRST + i) for i in range(count)]
    prompts = [encode(pair, one.question) for one in gold]
    params = SamplingParams(temperature=temperature, max_tokens=144, seed=0)
    texts = make_engine(pair).generate(prompts, [params] * len(gold), DraftOnly())
    found = []
    for one, prompt, (text,) in zip(gold, prompts, texts, strict=True):
        labels = step_labels(one, text.text)
        until = labels.index(False) + 1 if False in labels else len(labels)
        found.append(Solution(prompt, text.token_ids, labels[:until]))
    return found


def of_a_run(pair: ModelPair, path: Path, method: str, boundary: str) -> list[Solution]:
    """A method's recorded answers; all steps of one are as right as its answer."""
    found = []
    for answer, prompting in graded([path]).values():
        if answer.method != method:
            continue
        prompt, output = prompting.reread(pair.tokenizer, answer)
        steps = len(step_ends(pair.tokenizer, prompt, output, boundary))
        found.append(Solution(prompt, output, [bool(answer.right)] * steps))
    return found


def scores(
    pair: ModelPair,
    head: ValueHead | None,
    ranges: tuple[tuple[float, float], tuple[float, float]],
    solution: Solution,
    boundary: str,
) -> tuple[list[dict[str, float]], list[int]]:
    """Every score of every step, and the steps' lengths."""
    assert pair.draft is not None
    prompt, output = solution.prompt, solution.output
    p, q = (Reread(model, prompt, output).logprobs for model in (pair.target, pair.draft))
    chosen = torch.tensor(output)[:, None]
    of_target, of_draft = (rows.gather(-1, chosen)[:, 0] for rows in (p, q))
    doubts, draft_doubts, apart = entropy(p.exp()), entropy(q.exp()), divergence(q.exp(), p.exp())
    ends = step_ends(pair.tokenizer, prompt, output, boundary)
    bounds = list(zip([0, *ends[:-1]], ends, strict=True))
    grounded = groundings(pair.draft, prompt, output, bounds)
    found = []
    for (a, b), ground in zip(bounds, grounded, strict=True):
        low = float(of_draft[a:b].min())
        found.append(
            {
                "draft log-probability, min (l)": low,
                "draft log-probability, mean": float(of_draft[a:b].mean()),
                "draft grounding, min (g)": ground,
                "0.3 l + 0.7 g, scaled (r)": 0.3 * scaled(low, *ranges[0])
                + 0.7 * scaled(ground, *ranges[1]),
                "draft entropy, -max": -float(draft_doubts[a:b].max()),
                "target log-probability, min": float(of_target[a:b].min()),
                "target log-probability, mean": float(of_target[a:b].mean()),
                "target entropy, -max": -float(doubts[a:b].max()),
                "log p/q, sum": float((of_target - of_draft)[a:b].sum()),
                "log p/q, min": float((of_target - of_draft)[a:b].min()),
                "KL(q, p), -max": -float(apart[a:b].max()),
                "length, -tokens": a - b,
            }
        )
    if head is not None:
        states = states_at(pair, prompt + output, [len(prompt) + end - 1 for end in ends])
        for row, reward in zip(found, head(states).sigmoid().tolist(), strict=True):
            row["value head on the target"] = reward
    return found, [b - a for a, b in bounds]


def area(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """AUROC, NaN where one class is missing."""
    if len(set(labels)) < 2:
        return float("nan")
    return auroc(torch.tensor(scores, dtype=torch.float64), torch.tensor(labels))


def with_interval(
    values: np.ndarray, labels: np.ndarray, owner: np.ndarray, keep: np.ndarray
) -> dict[str, float]:
    """AUROC over the steps in `keep`, with a bootstrap over problems."""
    whole = area(values[keep].tolist(), labels[keep].tolist())
    generator = np.random.default_rng(0)
    by_owner = [np.flatnonzero((owner == one) & keep) for one in np.unique(owner[keep])]
    drawn = []
    for _ in range(RESAMPLES):
        picks = generator.integers(0, len(by_owner), len(by_owner))
        rows = np.concatenate([by_owner[i] for i in picks])
        drawn.append(area(values[rows].tolist(), labels[rows].tolist()))
    low, high = np.nanpercentile(drawn, [2.5, 97.5])
    return {"auroc": whole, "low": float(low), "high": float(high)}


def main() -> None:
    """Collect, measure, print."""
    parser = common.parser(__doc__)
    parser.add_argument("--problems", type=int, default=600)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--answers", type=Path, help="JSONL of antiphon eval, of another pair")
    parser.add_argument("--of", default="draft-only", help="the method whose answers are read")
    parser.add_argument("--reward", type=Path, help="a value head of antiphon train-reward")
    parser.add_argument("--boundary", choices=BOUNDARIES, default="blank-line")
    options = parser.parse_args()
    pair = common.pair(options)
    head = ValueHead.load(options.reward) if options.reward else None
    if options.answers:
        solutions = of_a_run(pair, options.answers, options.of, options.boundary)
        solutions = solutions[: options.problems]
    else:
        head = head or ValueHead.load(pair_path("value_head"))
        solutions = of_the_lab(pair, options.problems, options.temperature)
    models = Models(pair.target, pair.draft, None, pair.profile, pair.fingerprint)
    params = SamplingParams(temperature=options.temperature)
    ranges = SpecGuard(boundary=options.boundary).ranges(models, params)
    rows: list[dict[str, float]] = []
    labels, lengths, owner = [], [], []
    kept = keep_beginning(solutions[0].prompt, pair.target, pair.draft)
    with torch.no_grad():
        for i, solution in enumerate(solutions):
            seen, sizes = scores(pair, head, ranges, solution, options.boundary)
            counted = list(zip(seen, sizes, solution.labels, strict=False))
            rows += [row for row, _, _ in counted]
            lengths += [size for _, size, _ in counted]
            labels += [good for _, _, good in counted]
            owner += [i] * len(counted)
    del kept
    right, size, of = np.array(labels), np.array(lengths), np.array(owner)
    cuts = np.quantile(size, [1 / 3, 2 / 3])
    parts = {
        "all": np.ones(len(size), bool),
        "short": size <= cuts[0],
        "middle": (size > cuts[0]) & (size <= cuts[1]),
        "long": size > cuts[1],
    }
    table = {
        name: {
            part: with_interval(np.array([row[name] for row in rows]), right, of, keep)
            for part, keep in parts.items()
        }
        for name in rows[0]
    }
    record = {
        "premise": table,
        "steps": {part: int(keep.sum()) for part, keep in parts.items()},
        "right": float(right.mean()),
        "length_cuts": [float(cut) for cut in cuts],
        "problems": len(solutions),
        "temperature": options.temperature,
    }
    for name, by_part in table.items():
        cells = "  ".join(
            f"{part} {v['auroc']:.3f} ({v['low']:.3f} to {v['high']:.3f})"
            for part, v in by_part.items()
        )
        print(f"{name:34} {cells}")
    print(json.dumps({key: record[key] for key in ("steps", "right", "length_cuts")}))
    common.keep(options, pair.description, record)


if __name__ == "__main__":
    main()
