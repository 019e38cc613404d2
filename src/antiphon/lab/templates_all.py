"""Every template: the shared ones (`SEEN`), and the few that no training ever sees (`UNSEEN`)."""

from __future__ import annotations

from antiphon.lab.templates import (
    Draft,
    Template,
    ages,
    bags,
    bakery,
    change,
    compare,
    drive,
    garden,
    pages,
    saving,
    seats,
    share,
    wage,
)
from antiphon.lab.templates_more import (
    bus,
    contest,
    coupon,
    farm,
    half,
    ribbon,
    tank,
    teams,
    tickets,
    weather,
)
from antiphon.lab.words import Hand, eq


def shelves(h: Hand) -> Draft:
    """Unseen: books on shelves, some lent out, new ones arrive."""
    n, p = h.number(3, 9), h.number(5, 12)
    lent, new = h.number(2, n * p - 2), h.number(3, 40)
    q = (
        f"A library has {n} shelves with {p} books each. "
        f"It lends {lent} books and buys {new} new books."
    )
    steps = [
        f"The shelves hold {eq(n, '*', p)} books.",
        f"After lending there are {eq(n * p, '-', lent)} books.",
        f"With the new ones there are {eq(n * p - lent, '+', new)} books.",
    ]
    return f"{q} How many books are in the library now?", steps, n * p - lent + new


def laps(h: Hand) -> Draft:
    """Unseen: laps by the day, and the total of two swimmers."""
    a, b = h.names(2)
    m, d, k = h.number(3, 12), h.number(2, 7), h.number(2, 30)
    q = f"{a} swims {m} laps a day for {d} days. {b} swims {k} laps more than {a} in all."
    steps = [
        f"{a} swims {eq(d, '*', m)} laps.",
        f"{b} swims {eq(m * d, '+', k)} laps.",
        f"Together they swim {eq(m * d, '+', m * d + k)} laps.",
    ]
    return f"{q} How many laps do both swim together?", steps, 2 * m * d + k


def market(h: Hand) -> Draft:
    """Unseen: sells goods of two kinds and pays for the stall."""
    a, x = h.name(), h.things()
    p, n, r, e = h.number(2, 9), h.number(3, 12), h.number(2, 6), h.number(2, 9)
    fee = h.number(2, p * n + r * e - 1) if p * n + r * e < 40 else h.number(5, 35)
    q = (
        f"At a market {a} sells {n} jars of honey for ${p} each and {e} {x} for ${r} each. "
        f"The stall costs ${fee}."
    )
    steps = [
        f"The honey brings {eq(n, '*', p)} dollars.",
        f"The {x} bring {eq(e, '*', r)} dollars.",
        f"Together that is {eq(n * p, '+', e * r)} dollars.",
        f"After the stall {eq(n * p + e * r, '-', fee)} dollars are left.",
    ]
    return f"{q} How many dollars does {a} keep?", steps, n * p + e * r - fee


def queue(h: Hand) -> Draft:
    """Unseen: a line is served in equal groups after some leave."""
    g, m, gone = h.number(2, 9), h.number(2, 9), h.number(2, 20)
    n = g * m + gone
    q = f"{n} people wait for a ride. {gone} of them go home. The ride takes {g} people at a time."
    steps = [
        f"Then {eq(n, '-', gone)} people wait.",
        f"The ride must run {eq(g * m, '/', g)} times.",
    ]
    return f"{q} How many times must the ride run?", steps, m


SEEN: tuple[Template, ...] = (
    bags, change, pages, ages, share, drive, saving, seats, compare, bakery, garden, wage, half,
    tank, tickets, teams, farm, contest, coupon, bus, ribbon, weather,
)  # fmt: skip
UNSEEN: tuple[Template, ...] = (shelves, laps, market, queue)
