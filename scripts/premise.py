"""SpecGuard's premise on the bundled pair: do a step's scores tell whether it is right?

    python scripts/premise.py --problems 600 --temperature 0.7 --record docs/records/premise.json

The draft writes solutions to training problems; a step counts while all before it are right, and is
right if it does the gold solution's sums. Prints the AUROC of every score, of steps of all
lengths and by thirds of their length, with bootstrap intervals over problems.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import numpy as np
import torch

from antiphon.api import encode, make_engine
from antiphon.costs import machine
from antiphon.eval.calibrate import groundings, logprobs, step_ends
from antiphon.lab import pair_path
from antiphon.lab.problems import Problem, problem
from antiphon.lab.value_head import ValueHead, auroc, step_labels
from antiphon.methods import DraftOnly, SpecGuard
from antiphon.methods.base import Models
from antiphon.methods.specguard import scaled
from antiphon.models.base import Extension
from antiphon.models.pair import LoadOptions, ModelPair, load_pair
from antiphon.params import SamplingParams
from antiphon.rules.evidence import divergence, entropy

FIRST = 10**9 + 2_000_000
RESAMPLES = 400


def scores(
    pair: ModelPair,
    head: ValueHead,
    ranges: tuple[tuple[float, float], tuple[float, float]],
    prompt: tuple[int, ...],
    output: tuple[int, ...],
) -> tuple[list[dict[str, float]], list[int]]:
    """Every score of every step, and the steps' lengths."""
    assert pair.draft is not None
    p, q = (logprobs(model, prompt, output, 1.0) for model in (pair.target, pair.draft))
    chosen = torch.tensor(output)[:, None]
    of_target, of_draft = (rows.gather(-1, chosen)[:, 0] for rows in (p, q))
    doubts, draft_doubts, apart = entropy(p.exp()), entropy(q.exp()), divergence(q.exp(), p.exp())
    tree = pair.target.new_tree(len(prompt) + len(output))
    rows = tuple(range(len(prompt), len(prompt) + len(output)))
    (read,) = pair.target.forward(
        [Extension(pair.target, tree, prompt + output, rows=rows, hidden=True)]
    )
    assert read.hidden is not None
    ends = step_ends(pair.tokenizer, prompt, output)
    bounds = list(zip([0, *ends[:-1]], ends, strict=True))
    rewards = head(read.hidden[[end - 1 for end in ends]]).sigmoid().tolist()
    grounded = groundings(pair.draft, prompt, output, bounds)
    found = []
    for (a, b), reward, ground in zip(bounds, rewards, grounded, strict=True):
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
                "KL(q, p), -max": -float(apart[a:b].max()),
                "value head on the target": reward,
            }
        )
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", type=int, default=600)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    pair = load_pair(options=LoadOptions(dtype="float32"))
    head = ValueHead.load(pair_path("value_head"))
    gold: list[Problem] = [problem("train", FIRST + i) for i in range(options.problems)]
    prompts = [encode(pair, one.question) for one in gold]
    params = SamplingParams(temperature=options.temperature, max_tokens=144, seed=0)
    texts = make_engine(pair).generate(prompts, [params] * len(gold), DraftOnly())
    models = Models(pair.target, pair.draft, None, pair.profile, pair.fingerprint)
    ranges = SpecGuard().ranges(models, params)
    rows: list[dict[str, float]] = []
    labels, lengths, owner = [], [], []
    with torch.no_grad():
        for i, (one, prompt, (text,)) in enumerate(zip(gold, prompts, texts, strict=True)):
            seen, sizes = scores(pair, head, ranges, prompt, text.token_ids)
            for row, size, good in zip(seen, sizes, step_labels(one, text.text), strict=False):
                rows.append(row)
                labels.append(good)
                lengths.append(size)
                owner.append(i)
                if not good:
                    break
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
        "problems": options.problems,
        "temperature": options.temperature,
        "pair": pair.description,
        "machine": machine(),
        "date": date.today().isoformat(),
        "command": shlex.join(["python", "scripts/premise.py", *sys.argv[1:]]),
    }
    for name, by_part in table.items():
        cells = "  ".join(
            f"{part} {v['auroc']:.3f} ({v['low']:.3f} to {v['high']:.3f})"
            for part, v in by_part.items()
        )
        print(f"{name:34} {cells}")
    print(json.dumps({key: record[key] for key in ("steps", "right", "length_cuts")}))
    if options.record:
        options.record.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
