"""The words the lab's arithmetic problems are built from, and the seeded hand that draws them."""

from __future__ import annotations

import random
from typing import TypeVar

_T = TypeVar("_T")

NAMES = (
    "Anna Ben Carla David Ella Finn Grace Hugo Iris Jack Kira Leo Mia Noah Olga Paul Rosa Sam Tina "
    "Umar Vera Will Yara Zoe Amir Bella Chen Diego Emma Felix Hana Ivan Julia Karl Lena Max Nina "
    "Omar Pia Tom"
).split()

THINGS = (
    "apples pears plums lemons stickers marbles cards pencils pens shells stamps beads buttons "
    "coins books balls candles cookies muffins eggs nuts roses stones toys"
).split()

GOODS = "pens books mugs hats scarves plates lamps toys shirts candles bowls plants".split()

BOXES = "bags boxes baskets jars packs crates".split()


class Hand:
    """Draws words and numbers from one seeded generator, so a problem is a pure function of it."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        """An integer in `low..high`, both included."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, *options: _T) -> _T:
        """One of the options."""
        return options[int(self._random.random() * len(options))]

    def name(self) -> str:
        """A first name."""
        return self.pick(*NAMES)

    def names(self, count: int) -> list[str]:
        """Different first names."""
        return self._random.sample(NAMES, count)

    def things(self) -> str:
        """A plural noun of countable small objects."""
        return self.pick(*THINGS)

    def goods(self) -> str:
        """A plural noun of things a shop sells."""
        return self.pick(*GOODS)

    def boxes(self) -> str:
        """A plural noun of containers."""
        return self.pick(*BOXES)

    def factors(self) -> tuple[int, int]:
        """Two factors of a product of at most 150, mostly from the 12 x 12 table."""
        a = self.number(2, 12)
        return a, self.number(2, min(12 if self._random.random() < 0.8 else 30, 150 // a))


def eq(a: int, op: str, b: int) -> str:
    """The text `a op b = c`; a division must come out even."""
    match op:
        case "+":
            c = a + b
        case "-":
            c = a - b
        case "*":
            c = a * b
        case "/":
            c, rest = divmod(a, b)
            if rest:
                raise ValueError(f"{a} / {b} does not come out even")
        case _:
            raise ValueError(f"unknown operation {op!r}")
    return f"{a} {op} {b} = {c}"
