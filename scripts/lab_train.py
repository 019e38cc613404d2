"""Fresh training problems of the lab as a file for `antiphon eval --data`: what knobs are tuned on.

    python scripts/lab_train.py > lab_train.jsonl

A thousand questions, each once, from indices that neither the pair nor its arbiter was trained on.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from antiphon.lab.problems import problem

FIRST, COUNT = 10**9 + 500_000, 1000


def main() -> None:
    """Print the problems, a line each."""
    seen: set[str] = set()
    index = FIRST
    while len(seen) < COUNT:
        one = problem("train", index)
        index += 1
        if one.question not in seen:
            seen.add(one.question)
            print(json.dumps(asdict(one)))


if __name__ == "__main__":
    main()
