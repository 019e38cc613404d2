"""The word-problem templates that training, calibration and test share.

A template is a pure function of a `Hand`: it returns the question, the steps of its solution
(one sentence with one small operation each) and the answer. Numbers are drawn backwards from the
answer where a division or a subtraction must come out whole and positive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from antiphon.lab.words import Hand, eq

Draft: TypeAlias = tuple[str, list[str], int]
Template: TypeAlias = Callable[[Hand], Draft]


def bags(h: Hand) -> Draft:
    """Has some, buys bags, gives some away."""
    (a, b), x, box = h.names(2), h.things(), h.boxes()
    k, p = h.factors()
    n = h.number(5, 60)
    total = n + k * p
    g = h.number(2, min(total - 2, 60))
    q = h.pick(
        f"{a} has {n} {x} and buys {k} {box} with {p} {x} each. Then {a} gives {g} {x} to {b}.",
        f"{a} buys {k} {box} of {p} {x} each and already had {n} {x}. {b} gets {g} of them.",
    )
    s1 = h.pick(f"{k} {box} hold {eq(k, '*', p)} {x}.", f"The {box} hold {eq(k, '*', p)} {x}.")
    steps = [
        s1,
        f"{a} then has {eq(n, '+', k * p)} {x}.",
        h.pick(
            f"After the gift {eq(total, '-', g)} {x} are left.", f"Now {eq(total, '-', g)} remain."
        ),
    ]
    return f"{q} How many {x} does {a} have now?", steps, total - g


def change(h: Hand) -> Draft:
    """Buys several goods and one more thing, pays with a larger sum."""
    a, x, y = h.name(), h.goods(), h.pick("cake", "clock", "kite", "vase", "ball", "game", "chair")
    k, p = h.number(2, 9), h.number(2, 12)
    e = h.number(3, 40)
    cost = k * p + e
    pay = (cost // 10 + h.number(1, 3)) * 10
    q = h.pick(
        f"{a} buys {k} {x} at ${p} each and a {y} for ${e}. {a} pays with ${pay}.",
        f"In a shop {x} cost ${p} each and a {y} costs ${e}. "
        f"{a} buys {k} {x} and the {y} with ${pay}.",
    )
    steps = [
        h.pick(f"The {x} cost {eq(k, '*', p)} dollars.", f"{k} {x} cost {eq(k, '*', p)} dollars."),
        f"With the {y} that is {eq(k * p, '+', e)} dollars.",
        h.pick(
            f"The change is {eq(pay, '-', cost)} dollars.",
            f"{a} gets back {eq(pay, '-', cost)} dollars.",
        ),
    ]
    return f"{q} How many dollars of change does {a} get?", steps, pay - cost


def pages(h: Hand) -> Draft:
    """Reads some pages a day, finishes the rest at another rate."""
    a, book = h.name(), h.pick("book", "novel", "story", "manual")
    r, d = h.number(3, 15), h.number(2, 9)
    r2, d2 = h.number(2, 12), h.number(2, 9)
    total = r * d + r2 * d2
    q = h.pick(
        f"A {book} has {total} pages. "
        f"{a} reads {r} pages a day for {d} days, then {r2} pages a day.",
        f"{a} reads a {book} of {total} pages: {d} days with {r} pages a day, and after that {r2} "
        "a day.",
    )
    steps = [
        f"In {d} days {a} reads {eq(d, '*', r)} pages.",
        h.pick(
            f"Then {eq(total, '-', r * d)} pages are left.",
            f"There remain {eq(total, '-', r * d)} pages.",
        ),
        f"The rest takes {eq(total - r * d, '/', r2)} days.",
    ]
    return f"{q} How many more days does {a} need to finish?", steps, d2


def ages(h: Hand) -> Draft:
    """Chained ages: a multiple, a difference, and some years on."""
    a, b, c = h.names(3)
    n, k = h.number(4, 15), h.number(2, 5)
    older = h.pick(True, False)
    y, t = h.number(2, min(12, n * k - 1)), h.number(2, 20)
    other = n * k + y if older else n * k - y
    word = "older" if older else "younger"
    q = h.pick(
        f"{a} is {n} years old. {b} is {k} times as old as {a}. {c} is {y} years {word} than {b}.",
        f"{c} is {y} years {word} than {b}, who is {k} times as old as {a}. {a} is {n} years old.",
    )
    steps = [
        h.pick(f"{b} is {eq(n, '*', k)} years old.", f"The age of {b} is {eq(n, '*', k)}."),
        f"{c} is {eq(n * k, '+' if older else '-', y)} years old.",
        f"In {t} years {c} will be {eq(other, '+', t)} years old.",
    ]
    return f"{q} How old will {c} be in {t} years?", steps, other + t


def share(h: Hand) -> Draft:
    """Two heaps put together, shared evenly, some used up."""
    (a, b), x = h.names(2), h.things()
    k, each = h.number(2, 9), h.number(4, 16)
    total = k * each
    m = h.number(2, total - 2)
    used = h.number(1, each - 1)
    q = h.pick(
        f"{a} has {m} {x} and {b} has {total - m} {x}. They share them equally among {k} friends.",
        f"{a} brings {m} {x} and {b} brings {total - m}. "
        f"All the {x} are split evenly among {k} children.",
    )
    steps = [
        h.pick(
            f"Together there are {eq(m, '+', total - m)} {x}.",
            f"They have {eq(m, '+', total - m)} {x}.",
        ),
        f"Each one gets {eq(total, '/', k)} {x}.",
        f"After losing {used}, each has {eq(each, '-', used)} {x}.",
    ]
    return (
        f"{q} Each of them loses {used}. How many {x} does each one have left?",
        steps,
        each - used,
    )


def drive(h: Hand) -> Draft:
    """Two legs of a trip at two speeds, and what is left of the way."""
    a, how = h.name(), h.pick("drives", "cycles", "travels", "rides")
    s1, t1, s2, t2 = h.number(5, 20), h.number(2, 6), h.number(4, 15), h.number(2, 5)
    d1, d2 = s1 * t1, s2 * t2
    rest = h.number(3, 40)
    way = d1 + d2 + rest
    q = h.pick(
        f"{a} {how} {t1} hours at {s1} km an hour and then {t2} hours at {s2} km an hour.",
        f"{a} {how} at {s1} km an hour for {t1} hours, then at {s2} km an hour for {t2} hours.",
    )
    steps = [
        h.pick(
            f"The first part is {eq(t1, '*', s1)} km.", f"First {a} covers {eq(t1, '*', s1)} km."
        ),
        h.pick(
            f"The second part is {eq(t2, '*', s2)} km.", f"Then {a} covers {eq(t2, '*', s2)} km."
        ),
        f"Together that is {eq(d1, '+', d2)} km.",
        f"Of {way} km there remain {eq(way, '-', d1 + d2)} km.",
    ]
    return f"{q} The whole way is {way} km. How many km are left?", steps, rest


def saving(h: Hand) -> Draft:
    """Saves by the week on top of a start, then buys something."""
    a, y = h.name(), h.pick("bike", "phone", "jacket", "guitar", "camera", "tent", "radio")
    s, w, start = h.number(3, 12), h.number(3, 12), h.number(5, 50)
    total = s * w + start
    cost = h.number(10, total - 2)
    q = h.pick(
        f"{a} has ${start} and saves ${s} a week for {w} weeks. Then {a} buys a {y} for ${cost}.",
        f"{a} saves ${s} every week. After {w} weeks {a} adds ${start} and buys a {y} for ${cost}.",
    )
    steps = [
        f"In {w} weeks {a} saves {eq(w, '*', s)} dollars.",
        h.pick(
            f"{a} then has {eq(w * s, '+', start)} dollars.",
            f"That makes {eq(w * s, '+', start)} dollars.",
        ),
        f"After the {y} there are {eq(total, '-', cost)} dollars left.",
    ]
    return f"{q} How many dollars are left?", steps, total - cost


def seats(h: Hand) -> Draft:
    """Rows of seats, some taken, the free ones in groups."""
    hall = h.pick("hall", "cinema", "theater", "tent", "room")
    r, s = h.number(4, 12), h.number(4, 12)
    g = h.number(2, 9)
    m = h.number(1, max(1, (r * s - 2) // g))
    m = min(m, 15)
    taken = r * s - g * m
    if taken < 1:
        return seats(h)
    who = h.pick("guests", "people", "visitors")
    q = h.pick(
        f"A {hall} has {r} rows of {s} seats. {taken} seats are taken.",
        f"There are {r} rows with {s} seats each in a {hall}, and {taken} {who} already sit there.",
    )
    steps = [
        h.pick(f"The {hall} has {eq(r, '*', s)} seats.", f"There are {eq(r, '*', s)} seats."),
        f"Of these {eq(r * s, '-', taken)} are free.",
        h.pick(
            f"That is room for {eq(r * s - taken, '/', g)} groups.",
            f"They fit {eq(r * s - taken, '/', g)} groups.",
        ),
    ]
    return f"{q} How many groups of {g} {who} can still sit down?", steps, m


def compare(h: Hand) -> Draft:
    """A chain of comparisons, then the sum."""
    (a, b, c), x = h.names(3), h.things()
    n, m, k = h.number(3, 25), h.number(2, 20), h.number(2, 3)
    more = n <= m + 2 or h.pick(True, False)
    second = n + m if more else n - m
    third = second * k
    times = "twice" if k == 2 else "three times"
    q = h.pick(
        f"{a} has {n} {x}. {b} has {m} {'more' if more else 'fewer'} {x} than {a}. "
        f"{c} has {times} as many {x} as {b}.",
        f"{b} has {m} {'more' if more else 'fewer'} {x} than {a} and {c} has {times} as many as "
        f"{b}. "
        f"{a} has {n} {x}.",
    )
    steps = [
        f"{b} has {eq(n, '+' if more else '-', m)} {x}.",
        f"{c} has {eq(second, '*', k)} {x}.",
        h.pick(
            f"{a} and {b} have {eq(n, '+', second)} {x}.",
            f"The first two have {eq(n, '+', second)} {x}.",
        ),
        f"All three have {eq(n + second, '+', third)} {x}.",
    ]
    return f"{q} How many {x} do they have together?", steps, n + second + third


def bakery(h: Hand) -> Draft:
    """Bakes trays, sells some, packs the rest."""
    a, x, box = h.name(), h.pick("rolls", "muffins", "cookies", "cakes", "buns", "pies"), h.boxes()
    t, p = h.number(3, 12), h.number(4, 12)
    b = h.number(2, 9)
    m = min(12, max(1, (t * p - 1) // b - h.number(0, 4)))
    sold = t * p - b * m
    if sold < 1:
        return bakery(h)
    q = h.pick(
        f"{a} bakes {t} trays of {p} {x} and sells {sold} {x}. The rest go into {box} of {b}.",
        f"{t} trays with {p} {x} each come out of the oven. "
        f"{a} sells {sold} and packs the others in {box} of {b}.",
    )
    steps = [
        f"{a} bakes {eq(t, '*', p)} {x}.",
        h.pick(
            f"After the sale {eq(t * p, '-', sold)} {x} are left.",
            f"Then {eq(t * p, '-', sold)} remain.",
        ),
        f"They fill {eq(t * p - sold, '/', b)} {box}.",
    ]
    return f"{q} How many {box} does {a} fill?", steps, m


def garden(h: Hand) -> Draft:
    """Two kinds of rows, the sum, and the loss."""
    x, y = h.pick(("red", "blue"), ("white", "pink"), ("yellow", "purple"), ("tall", "short"))
    f = h.pick("flowers", "tulips", "roses", "plants")
    a, b, c, d = h.number(2, 9), h.number(2, 12), h.number(2, 9), h.number(2, 12)
    total = a * b + c * d
    lost = h.number(1, min(total - 1, 40))
    q = h.pick(
        f"A garden has {a} rows of {b} {x} {f} and {c} rows of {d} {y} {f}. "
        f"{lost} of them dry out.",
        f"{h.name()} plants {a} rows of {b} {x} {f} and {c} rows of {d} {y} {f}. "
        f"{lost} do not grow.",
    )
    steps = [
        f"There are {eq(a, '*', b)} {x} {f}.",
        f"There are {eq(c, '*', d)} {y} {f}.",
        h.pick(
            f"Together that is {eq(a * b, '+', c * d)} {f}.",
            f"In all {eq(a * b, '+', c * d)} are planted.",
        ),
        f"Without the lost ones {eq(total, '-', lost)} are left.",
    ]
    return f"{q} How many {f} are left?", steps, total - lost


def wage(h: Hand) -> Draft:
    """Hours times pay, a bonus, and an expense."""
    a, job = h.name(), h.pick("cook", "guide", "painter", "driver", "gardener", "tutor")
    w, t = h.number(6, 15), h.number(2, 9)
    bonus, spent = h.number(5, 40), h.number(4, 30)
    earned = w * t + bonus
    spent = min(spent, earned - 1)
    what = h.pick("food", "gas", "books", "shoes", "a gift")
    q = h.pick(
        f"{a} works as a {job} for ${w} an hour. "
        f"{a} works {t} hours, gets a tip of ${bonus} and spends ${spent} on {what}.",
        f"As a {job} {a} earns ${w} per hour. "
        f"After {t} hours and a ${bonus} tip, {a} pays ${spent} for {what}.",
    )
    steps = [
        h.pick(
            f"The work pays {eq(t, '*', w)} dollars.", f"{t} hours pay {eq(t, '*', w)} dollars."
        ),
        f"With the tip it is {eq(t * w, '+', bonus)} dollars.",
        f"After paying for {what}, {eq(earned, '-', spent)} dollars are left.",
    ]
    return f"{q} How many dollars does {a} have left?", steps, earned - spent
