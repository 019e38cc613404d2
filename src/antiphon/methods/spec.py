"""Methods as text: ``speculative:gamma=6,chains=3`` and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from antiphon.errors import UserError
from antiphon.methods import METHODS, Method
from antiphon.rules.catalogue import truth


def parse(text: str) -> Method:
    """The method that ``NAME`` or ``NAME:field=value,field=value`` describes.

    Raises UserError for a name, a field or a value that does not exist.
    """
    name, _, rest = text.partition(":")
    values: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"{part!r} in {text!r}: write field=value, commas between")
        values[key.strip()] = value.strip()
    return build(name.strip(), values)


def build(name: str, values: Mapping[str, str]) -> Method:
    """A method from its name and the text of some of its fields.

    Raises UserError as `parse` does, and for values the method itself refuses.
    """
    if name not in METHODS:
        raise UserError(f"method {name!r} is not known: choose {', '.join(METHODS)}")
    config = METHODS[name]
    known = {field.name: field for field in dataclasses.fields(config)}
    unknown = next((key for key in values if key not in known), None)
    if unknown is not None:
        fields = f"it has {', '.join(known)}" if known else "it has no fields"
        raise UserError(f"{name} has no field {unknown!r}: {fields}")
    hints = get_type_hints(config)
    arguments = {key: _value(name, key, text, hints[key]) for key, text in values.items()}
    method: Method = config(**arguments)
    return method


def describe(method: Method) -> str:
    """The text `parse` reads: the method's name and the fields that differ from their default."""
    name = name_of(method)
    changed = [
        f"{field.name}={getattr(method, field.name)}"
        for field in dataclasses.fields(method)  # type: ignore[arg-type]
        if getattr(method, field.name) != field.default
    ]
    return f"{name}:{','.join(changed)}" if changed else name


def name_of(method: Method) -> str:
    """The method's plain name."""
    return next(name for name, config in METHODS.items() if type(method) is config)


def with_fields(method: Method, values: Mapping[str, str]) -> Method:
    """The same method with some fields set from text."""
    hints = get_type_hints(type(method))
    name = name_of(method)
    read = {key: _value(name, key, text, hints[key]) for key, text in values.items()}
    changed: Method = dataclasses.replace(method, **read)  # type: ignore[type-var]
    return changed


def _value(name: str, key: str, text: str, hint: Any) -> Any:
    """Read a number where the field takes one; the method judges everything else."""
    if "Callable" in str(hint):
        raise UserError(f"{name}: {key} is a function: it can be given in Python only")
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if bool in kinds:
        return truth(f"{name}: {key}", text)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    if any(kind is str or get_origin(kind) is Literal for kind in kinds):
        return text
    raise UserError(f"{name}: {key} is {text!r}: give a {'whole ' * (int in kinds)}number")
