"""The upper bound of any arbiter: what could be answered if gold chose the branches.

    python scripts/oracle.py --limit 1000 --record docs/records/oracle.json

The target answers greedily. Where it is wrong, every place is tried where the first choices
differ: the draft's token is taken there and the target goes on. With --depth 2 what is still wrong
is tried at a second place behind the first. A problem counts as solved at the least number of such
decisions that ends in the gold answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import common

from antiphon.api import make_engine
from antiphon.arbiter.mine import Miner, continued, mismatches, plain
from antiphon.cli.eval import build_task
from antiphon.engine import Engine
from antiphon.eval import data as rows
from antiphon.eval.prompting import Prompting
from antiphon.eval.statistics import wilson
from antiphon.eval.task import Problem
from antiphon.models.pair import ModelPair


def solved(
    miner: Miner, pair: ModelPair, engine: Engine, problems: list[Problem], depth: int
) -> list[int | None]:
    """For each problem the least number of draft tokens that lead to gold; None: not found."""
    prompts = miner.prompts(pair, problems)
    ends = pair.eos_token_ids
    found: list[int | None] = [None] * len(problems)
    # Texts to look at: problem, tokens so far, and how many of those are settled.
    tails = continued(engine, prompts, [miner.max_tokens] * len(prompts), ends)
    looked = [(i, tail, 0) for i, tail in enumerate(tails)]
    for level in range(depth + 1):
        for i, ids, _ in looked:
            if found[i] is None and miner.task.grade(problems[i], plain(pair, ids)).right:
                found[i] = level
        if level == depth:
            break
        starts: list[tuple[int, tuple[int, ...]]] = []
        for i, ids, settled in looked:
            if found[i] is None:
                spots, _, rivals = mismatches(pair, prompts[i], ids)
                pairs = zip(spots, rivals, strict=True)
                ways = [(*ids[:at], drafted) for at, (drafted, _) in pairs if at >= settled]
                starts += [(i, way) for way in ways[: miner.most]]
        rooms = [miner.max_tokens - len(way) for _, way in starts]
        ran = continued(engine, [(*prompts[i], *way) for i, way in starts], rooms, ends)
        looked = [(i, (*way, *tail), len(way)) for (i, way), tail in zip(starts, ran, strict=True)]
    return found


def main() -> None:
    """Search, count, print."""
    parser = common.parser(__doc__)
    parser.add_argument("--task", default="lab")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--most", type=int, default=64, help="places tried in one text")
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    pair = common.pair(options)
    task = build_task(options.task, None, None)
    problems = rows.load(task, options.data, options.limit).problems
    miner = Miner(task, Prompting(), task.max_tokens, most=options.most, batch=options.batch)
    engine = make_engine(pair, batch=options.batch, costs=True)
    found: list[int | None] = []
    size = 4 * options.batch
    for start in range(0, len(problems), size):
        found += solved(miner, pair, engine, list(problems[start : start + size]), options.depth)
        print(f"{len(found)} of {len(problems)}", file=sys.stderr)
    table = []
    for level in range(options.depth + 1):
        right = sum(one is not None and one <= level for one in found)
        low, high = wilson(right / len(found), len(found))
        table.append({"decisions": level, "right": right / len(found), "low": low, "high": high})
    record = {
        "oracle": table,
        "problems": len(found),
        "most": options.most,
    }
    print(json.dumps(record))
    common.keep(options, pair.description, record)


if __name__ == "__main__":
    main()
