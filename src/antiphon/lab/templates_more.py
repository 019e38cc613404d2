"""More of the templates that training, calibration and test share."""

from __future__ import annotations

from antiphon.lab.templates import Draft
from antiphon.lab.words import Hand, eq


def teams(h: Hand) -> Draft:
    """Two groups form teams, each team gets something."""
    k, size = h.number(3, 9), h.number(3, 9)
    total = k * size
    boys = h.number(2, total - 2)
    e = h.number(2, 9)
    x = h.pick("balls", "shirts", "cones", "ropes", "hoops", "flags")
    q = h.pick(
        f"A class of {boys} boys and {total - boys} girls forms teams of {size}. "
        f"Each team gets {e} {x}.",
        f"{boys} boys and {total - boys} girls play in teams of {size} children. "
        f"Every team needs {e} {x}.",
    )
    steps = [
        h.pick(
            f"There are {eq(boys, '+', total - boys)} children.",
            f"The class has {eq(boys, '+', total - boys)} children.",
        ),
        f"They form {eq(total, '/', size)} teams.",
        f"The teams need {eq(k, '*', e)} {x}.",
    ]
    return f"{q} How many {x} are needed?", steps, k * e


def farm(h: Hand) -> Draft:
    """Counts the legs of two kinds of animals."""
    two, four = h.pick("hens", "ducks", "geese"), h.pick("cows", "goats", "sheep", "pigs", "horses")
    a, b, gone = h.number(4, 30), h.number(3, 20), h.number(1, 3)
    q = h.pick(
        f"A farm has {a} {two} and {b} {four}. Then {gone} of the {four} are sold.",
        f"{h.name()} keeps {a} {two} and {b} {four} and sells {gone} of the {four}.",
    )
    left = b - gone
    if left < 1:
        return farm(h)
    steps = [
        h.pick(
            f"There are {eq(b, '-', gone)} {four} left.", f"Now {eq(b, '-', gone)} {four} stay."
        ),
        f"The {four} have {eq(4, '*', left)} legs.",
        f"The {two} have {eq(2, '*', a)} legs.",
        f"In all there are {eq(4 * left, '+', 2 * a)} legs.",
    ]
    return f"{q} How many legs do the animals have now?", steps, 4 * left + 2 * a


def contest(h: Hand) -> Draft:
    """Two collectors at two rates: by how much does one lead."""
    (a, b), x = h.names(2), h.things()
    while True:
        p, d, r, e = h.number(3, 12), h.number(3, 12), h.number(3, 12), h.number(3, 12)
        if p * d > r * e:
            break
    q = h.pick(
        f"{a} collects {p} {x} a day for {d} days. {b} collects {r} {x} a day for {e} days.",
        f"For {d} days {a} finds {p} {x} every day, and for {e} days {b} finds {r} {x} every day.",
    )
    steps = [
        h.pick(f"{a} gets {eq(d, '*', p)} {x}.", f"{a} has {eq(d, '*', p)} {x}."),
        h.pick(f"{b} gets {eq(e, '*', r)} {x}.", f"{b} has {eq(e, '*', r)} {x}."),
        f"The difference is {eq(p * d, '-', r * e)}.",
    ]
    return f"{q} How many more {x} does {a} have than {b}?", steps, p * d - r * e


def coupon(h: Hand) -> Draft:
    """A price cut per piece, several pieces, and delivery."""
    a, x = h.name(), h.goods()
    p, c, n, f = h.number(6, 30), h.number(1, 5), h.number(2, 9), h.number(3, 25)
    q = h.pick(
        f"{x.capitalize()} cost ${p} each, but today each is ${c} cheaper. "
        f"{a} orders {n} and pays ${f} for delivery.",
        f"{a} orders {n} {x} at ${p} each. A coupon takes ${c} off each one, and delivery is ${f}.",
    )
    steps = [
        h.pick(
            f"Each one costs {eq(p, '-', c)} dollars.", f"The new price is {eq(p, '-', c)} dollars."
        ),
        f"The {x} cost {eq(n, '*', p - c)} dollars.",
        f"With delivery it is {eq(n * (p - c), '+', f)} dollars.",
    ]
    return f"{q} How many dollars does {a} pay?", steps, n * (p - c) + f


def bus(h: Hand) -> Draft:
    """People get on and off at stops."""
    what = h.pick("bus", "train", "tram", "boat", "ferry")
    n, on1, on2 = h.number(8, 60), h.number(2, 30), h.number(2, 30)
    off1, off2 = h.number(2, n - 2), h.number(2, 12)
    t1 = n - off1
    t2 = t1 + on1
    t3 = t2 - off2
    if t3 < 1:
        return bus(h)
    q = h.pick(
        f"A {what} carries {n} people. At the first stop {off1} get off and {on1} get on. "
        f"At the next stop {off2} get off and {on2} get on.",
        f"{n} people sit in a {what}. "
        f"First {off1} leave and {on1} enter, later {off2} leave and {on2} enter.",
    )
    steps = [
        f"After the first leave there are {eq(n, '-', off1)} people.",
        f"With the new ones there are {eq(t1, '+', on1)} people.",
        h.pick(f"At the next stop {eq(t2, '-', off2)} stay.", f"Then {eq(t2, '-', off2)} stay."),
        f"In the end there are {eq(t3, '+', on2)} people.",
    ]
    return f"{q} How many people are on the {what} now?", steps, t3 + on2


def ribbon(h: Hand) -> Draft:
    """Cuts pieces off a length and splits the rest."""
    a, x = h.name(), h.pick("ribbon", "rope", "wire", "string", "cloth", "pipe")
    k, p, m, r = h.number(2, 9), h.number(3, 12), h.number(2, 9), h.number(2, 12)
    total = k * p + m * r
    q = h.pick(
        f"A {x} is {total} cm long. {a} cuts off {k} pieces of {p} cm and cuts the rest into {m} "
        "equal parts.",
        f"From {total} cm of {x} {a} takes {k} pieces of {p} cm each. "
        f"The rest is cut into {m} equal parts.",
    )
    steps = [
        h.pick(f"The pieces use {eq(k, '*', p)} cm.", f"{k} pieces take {eq(k, '*', p)} cm."),
        f"Then {eq(total, '-', k * p)} cm are left.",
        f"Each part is {eq(m * r, '/', m)} cm long.",
    ]
    return f"{q} How many cm long is each part?", steps, r


def weather(h: Hand) -> Draft:
    """Rises by the hour, then falls by the hour."""
    start, up, t, down, u = (
        h.number(2, 30),
        h.number(2, 6),
        h.number(2, 6),
        h.number(1, 4),
        h.number(2, 5),
    )
    top = start + up * t
    if top - down * u < 1:
        return weather(h)
    q = h.pick(
        f"At dawn it is {start} degrees. It gets {up} degrees warmer each hour for {t} hours, "
        f"then {down} degrees colder each hour for {u} hours.",
        f"It is {start} degrees. For {t} hours it rises {up} degrees an hour, then for {u} hours "
        f"it falls {down} an hour.",
    )
    steps = [
        f"The rise is {eq(t, '*', up)} degrees.",
        h.pick(
            f"The top is {eq(start, '+', t * up)} degrees.",
            f"It then is {eq(start, '+', t * up)} degrees.",
        ),
        f"The fall is {eq(u, '*', down)} degrees.",
        f"At the end it is {eq(top, '-', u * down)} degrees.",
    ]
    return f"{q} How many degrees is it at the end?", steps, top - u * down


def tank(h: Hand) -> Draft:
    """Fills at one rate while leaking at another."""
    what = h.pick("tank", "pool", "barrel", "tub", "pond")
    f, leak, t = h.number(5, 20), h.number(1, 4), h.number(3, 9)
    have = h.number(4, 50)
    level = have + (f - leak) * t
    q = h.pick(
        f"A {what} holds {have} liters. "
        f"A pipe adds {f} liters a minute while {leak} liters a minute leak out.",
        f"Each minute {f} liters flow into a {what} and {leak} liters leak out. "
        f"It held {have} liters before.",
    )
    steps = [
        h.pick(
            f"Each minute the {what} gains {eq(f, '-', leak)} liters.",
            f"The gain is {eq(f, '-', leak)} liters a minute.",
        ),
        f"In {t} minutes it gains {eq(t, '*', f - leak)} liters.",
        f"Then it holds {eq(have, '+', (f - leak) * t)} liters.",
    ]
    return f"{q} How many liters does it hold after {t} minutes?", steps, level


def tickets(h: Hand) -> Draft:
    """Two prices, two counts, and a split of the bill."""
    place = h.pick("zoo", "museum", "fair", "concert", "game", "park")
    p, c = h.number(6, 12), h.number(2, 5)
    while True:
        m, n, k = h.number(2, 6), h.number(2, 6), h.number(2, 6)
        total = m * p + n * c
        if total % k == 0:
            break
    q = h.pick(
        f"For the {place} a ticket costs ${p} for adults and ${c} for children. "
        f"{m} adults and {n} children go.",
        f"{m} adults and {n} children visit the {place}. Adults pay ${p} and children ${c}.",
    )
    steps = [
        f"The adults cost {eq(m, '*', p)} dollars.",
        f"The children cost {eq(n, '*', c)} dollars.",
        h.pick(
            f"The bill is {eq(m * p, '+', n * c)} dollars.",
            f"Together that is {eq(m * p, '+', n * c)} dollars.",
        ),
        f"Each family pays {eq(total, '/', k)} dollars.",
    ]
    return f"{q} {k} families split the bill. How many dollars does each pay?", steps, total // k


def half(h: Hand) -> Draft:
    """A fraction given away, some lost, some found."""
    (a, b), x = h.names(2), h.things()
    k, word = h.pick((2, "half"), (3, "a third"), (4, "a quarter"), (5, "a fifth"))
    part = h.number(4, 120 // k)
    n = k * part
    found = h.number(2, 30)
    q = h.pick(
        f"{a} has {n} {x} and gives {word} of them to {b}. Later {a} finds {found} more {x}.",
        f"{a} gives {b} {word} of {n} {x}. After that {a} gets {found} new {x}.",
    )
    steps = [
        h.pick(f"{b} gets {eq(n, '/', k)} {x}.", f"The gift is {eq(n, '/', k)} {x}."),
        f"{a} keeps {eq(n, '-', part)} {x}.",
        h.pick(
            f"Then {a} has {eq(n - part, '+', found)} {x}.",
            f"In the end {eq(n - part, '+', found)} {x} are there.",
        ),
    ]
    return f"{q} How many {x} does {a} have in the end?", steps, n - part + found
