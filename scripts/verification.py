"""What verifying a step costs: milliseconds a step of drafting, verifying, rewriting and all else.

    python scripts/verification.py --method specguard --method stepscore --record FILE

One request at a time. A step's verification is the pass that scores it, with the attention and the
log-probabilities that are read off it, whichever model makes it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import common

from antiphon.api import make_engine
from antiphon.cli.eval import build_task
from antiphon.engine import Engine
from antiphon.eval import data as rows
from antiphon.eval.prompting import Prompting
from antiphon.methods import Method, spec
from antiphon.methods.redo import Redo
from antiphon.methods.steps import StepWriter
from antiphon.params import SamplingParams

PARTS = ("drafting", "verifying", "rewriting")


@contextmanager
def clocks(draft: object) -> Iterator[defaultdict[str, float]]:
    """Seconds of each part of every step that is written meanwhile, one request at a time.

    Args:
        draft: the model that drafts; steps that the other one writes are rewritten ones.
    """
    seconds: defaultdict[str, float] = defaultdict(float)
    inside: list[str] = []

    def timed(method: Callable[..., Any], part: str) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **fields: Any) -> Any:
            mine = "rewriting" if part == "drafting" and self.model is not draft else part
            inside.append(mine)
            began = time.perf_counter()
            found = yield from method(self, *args, **fields)
            inside.pop()
            if not inside:
                seconds[mine] += time.perf_counter() - began
            return found

        return run

    kept = [
        (StepWriter, "propose", "drafting"),
        (StepWriter, "score", "verifying"),
        (StepWriter, "score_all", "verifying"),
        (Redo, "write", "rewriting"),
    ]
    before = [getattr(owner, name) for owner, name, _ in kept]
    for (owner, name, part), method in zip(kept, before, strict=True):
        setattr(owner, name, timed(method, part))
    try:
        yield seconds
    finally:
        for (owner, name, _), method in zip(kept, before, strict=True):
            setattr(owner, name, method)


def split(
    engine: Engine, method: Method, prompts: list[tuple[int, ...]], params: SamplingParams
) -> dict[str, float]:
    """Milliseconds a step, the number of steps, and the share of refused ones."""
    engine.generate(prompts[:1], [params], method)  # Warms up.
    steps = refused = 0.0
    with clocks(engine.models.draft) as seconds:
        began = time.perf_counter()
        for i, prompt in enumerate(prompts):
            ((result,),) = engine.generate([prompt], [replace(params, seed=i)], method)
            if result.error:
                raise RuntimeError(result.error)
            steps += sum(r.notes.get("steps", 0) for r in result.rounds)
            refused += sum(r.notes.get("fired", 0) for r in result.rounds)
        seconds["all"] = time.perf_counter() - began
    ms = {part: 1e3 * seconds[part] / steps for part in (*PARTS, "all")}
    return ms | {"steps": steps, "refused": refused / steps}


def main() -> None:
    """Measure, print."""
    parser = common.parser(__doc__, threads=2)
    parser.add_argument("--method", action="append", required=True)
    parser.add_argument("--task", default="lab")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.7)
    options = parser.parse_args()
    pair = common.pair(options)
    task, prompting = build_task(options.task, None, None), Prompting()
    problems = rows.load(task, options.data, options.limit).problems
    texts = [prompting.render(pair.tokenizer, task, problem) for problem in problems]
    prompts = [prompting.encode(pair.tokenizer, text) for text in texts]
    params = SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens, seed=0)
    engine = make_engine(pair)
    found = []
    for name in options.method:
        found.append({"name": name} | split(engine, spec.parse(name), prompts, params))
        print(found[-1])
    record = {
        "verification": found,
        "prompts": len(prompts),
        "temperature": options.temperature,
    }
    common.keep(options, pair.description, record)


if __name__ == "__main__":
    main()
