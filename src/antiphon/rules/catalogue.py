"""All rules by name, and how text names one: ``cactus/delta=0.5``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, get_type_hints

from antiphon.errors import UserError
from antiphon.rules.cactus import Cactus
from antiphon.rules.cascade import Cascade
from antiphon.rules.coin import Coin
from antiphon.rules.contrastive import Contrastive
from antiphon.rules.ears import EARS
from antiphon.rules.ensemble import Ensemble
from antiphon.rules.entropy_veto import EntropyVeto
from antiphon.rules.exact import Exact
from antiphon.rules.fly import FLy
from antiphon.rules.forced import Forced
from antiphon.rules.fuzzy import Fuzzy
from antiphon.rules.judge import Rules
from antiphon.rules.kl_judge import KLJudge
from antiphon.rules.lenience import Lenience
from antiphon.rules.mentored import Mentored
from antiphon.rules.topk import TopK
from antiphon.rules.typical import Typical

BASES: Mapping[str, type[Any]] = {
    "exact": Exact,
    "lenience": Lenience,
    "typical": Typical,
    "cactus": Cactus,
    "mentored": Mentored,
    "ears": EARS,
    "fuzzy": Fuzzy,
    "topk": TopK,
    "ensemble": Ensemble,
    "cascade": Cascade,
    "contrastive": Contrastive,
    "forced": Forced,
}
RESCUES: Mapping[str, type[Any]] = {
    "fly": FLy,
    "kl-judge": KLJudge,
    "fuzzy": Fuzzy,
    "topk": TopK,
    "coin": Coin,
}
VETOES: Mapping[str, type[Any]] = {"entropy": EntropyVeto}
KINDS = {"rule": BASES, "rescue": RESCUES, "veto": VETOES}


def rules(base: str, rescue: str = "", veto: str = "") -> Rules:
    """The composition that three texts name; "" is none.

    Raises UserError for a name, an argument or a value that does not exist.
    """
    return Rules(
        base=parse("rule", base),
        rescue=parse("rescue", rescue) if rescue else None,
        veto=parse("veto", veto) if veto else None,
    )


def parse(kind: str, text: str) -> Any:
    """The rule that ``NAME`` or ``NAME/argument=value/...`` describes.

    Args:
        kind: "rule", "rescue" or "veto".
    """
    known = KINDS[kind]
    name, *parts = (part.strip() for part in text.split("/"))
    if name not in known:
        raise UserError(f"{kind} is {name!r}: choose {', '.join(known)}")
    config = known[name]
    hints = get_type_hints(config)
    fields = {field.name: field for field in dataclasses.fields(config)}
    values: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"{part!r} in {kind} {text!r}: write argument=value")
        if key not in fields:
            takes = f"it takes {', '.join(fields)}" if fields else "it takes none"
            raise UserError(f"{kind} {name} has no argument {key!r}: {takes}")
        values[key] = _value(kind, name, key, value, hints[key])
    missing = [
        key
        for key, field in fields.items()
        if field.default is dataclasses.MISSING and key not in values
    ]
    if missing:
        raise UserError(f"{kind} {name} needs {', '.join(missing)}: write {missing[0]}=VALUE")
    return config(**values)


def truth(what: str, text: str) -> bool:
    """A truth value from text; raises UserError for anything but true and false."""
    if text.lower() not in ("true", "false"):
        raise UserError(f"{what} is {text!r}: give true or false")
    return text.lower() == "true"


def _value(kind: str, name: str, key: str, text: str, hint: Any) -> Any:
    if hint is bool:
        return truth(f"{kind} {name}: {key}", text)
    if hint not in (int, float):
        return text
    try:
        return hint(text)
    except ValueError:
        wanted = "a whole number" if hint is int else "a number"
        raise UserError(f"{kind} {name}: {key} is {text!r}: give {wanted}") from None
