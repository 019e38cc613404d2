"""The lab's problems: a seeded, pure generator of short arithmetic word problems.

`problem(split, index)` is the same problem on every machine, forever. The split a question belongs
to is decided by a hash of its text, so no two splits can share a question, however many are drawn.
A solution is one sentence with one small operation per step, a blank line between steps, and ends
with `The answer is N.`
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from antiphon.errors import UserError
from antiphon.lab.templates_all import SEEN, UNSEEN
from antiphon.lab.words import Hand, eq

SPLITS = ("train", "calibration", "test", "unseen")
STEP_BREAK = "\n\n"

# Parts per thousand of the shared templates' questions held out of training.
_HELD_OUT = {"test": range(40), "calibration": range(40, 80), "train": range(80, 1000)}
# No number of a problem is larger. Larger ones would cost a tiny model far more training than they
# teach anyone.
LARGEST = 200
_NUMBER = re.compile(r"\d+")
_ANSWER = re.compile(r"The answer is\D*?(-?\d+)")


@dataclass(frozen=True, slots=True)
class Problem:
    """One word problem with its only gold answer."""

    question: str
    solution: str
    answer: int
    template: str
    id: str

    @property
    def steps(self) -> list[str]:
        """The paragraphs of the solution; the last one states the answer."""
        return self.solution.split(STEP_BREAK)


def split_of(question: str) -> str:
    """The split a question of the shared templates belongs to: a function of its text alone."""
    part = int.from_bytes(hashlib.sha256(question.encode()).digest()[:8], "big") % 1000
    return next(split for split, parts in _HELD_OUT.items() if part in parts)


def problem(split: str, index: int, largest: int = LARGEST) -> Problem:
    """Problem number `index` of a split.

    Args:
        split: `train`, `calibration`, `test` or `unseen`.
        index: 0, 1, 2, ... without end.
        largest: ceiling of every number; lower ones make an easier start of training.

    Raises:
        UserError: the split does not exist.
    """
    if split not in SPLITS:
        raise UserError(f"unknown split {split!r}: choose one of {', '.join(SPLITS)}")
    templates = UNSEEN if split == "unseen" else SEEN
    attempt = 0
    while True:
        hand = Hand(f"{split}/{index}/{attempt}")
        template = hand.pick(*templates)
        question, steps, answer = template(hand)
        small = max(map(int, _NUMBER.findall(" ".join([question, *steps])))) <= largest
        if small and (split == "unseen" or split_of(question) == split):
            break
        attempt += 1
    solution = STEP_BREAK.join([*steps, f"The answer is {answer}."])
    return Problem(question, solution, answer, template.__name__, f"{split}-{index}")


def drill(index: int, largest: int = LARGEST) -> Problem:
    """Two to five bare sums without a story, only ever used to practise arithmetic in training."""
    hand = Hand(f"drill/{index}")
    sums = [_sum(hand, largest) for _ in range(hand.number(2, 5))]
    word = hand.pick("Find", "Compute", "Work out")
    question = f"{word} {', '.join(f'{a} {op} {b}' for a, op, b, _ in sums)}."
    answer = sums[-1][3]
    solution = STEP_BREAK.join(
        [*(f"{eq(a, op, b)}." for a, op, b, _ in sums), f"The answer is {answer}."]
    )
    return Problem(question, solution, answer, "drill", f"drill-{index}")


def _sum(hand: Hand, largest: int) -> tuple[int, str, int, int]:
    op = hand.pick("+", "+", "-", "-", "*", "*", "/")
    if op in "+-":
        total = hand.number(4, largest)
        part = hand.number(1, total - 1)
        return (total - part, op, part, total) if op == "+" else (total, op, part, total - part)
    a, b = hand.factors()
    while a * b > largest:
        a, b = hand.factors()
    return (a, op, b, a * b) if op == "*" else (a * b, op, b, a)


def final_answer(text: str) -> int | None:
    """The number after the last `The answer is`, or None where the text states none."""
    found = _ANSWER.findall(text)
    return int(found[-1]) if found else None
