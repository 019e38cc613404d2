"""What the server offers: NAME is its default method, ``NAME@smc`` and the like are the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from antiphon.errors import UserError
from antiphon.methods import METHODS, Method, Models, spec
from antiphon.params import SamplingParams
from antiphon.serve.fields import FieldError

PRIVATE = frozenset({"arbiter", "reward"})
"""Knobs that name files: a request may not set them."""

LARGEST = {"particles": 64, "gamma": 64, "chains": 32, "candidates": 16}
"""Knobs that multiply the work, and the largest value a request may give."""


class UnknownModelError(RuntimeError):
    """A model that is not offered; the message says which ones are."""


class Offers:
    """The models of ``/v1/models``, and the method a request asks for.

    Args:
        name: of the pair.
        default: what NAME alone stands for.
        methods: configured ones, by their plain names, in place of the bare ones.

    Raises UserError for a configured method that this pair cannot serve.
    """

    def __init__(
        self, name: str, models: Models, default: Method, methods: Mapping[str, Method]
    ) -> None:
        self.name, self.default = name, default
        self.methods: dict[str, Method] = {}
        for kind, config in METHODS.items():
            method = methods.get(kind) or config()
            try:
                method.check(models, SamplingParams(temperature=1.0))
            except UserError:
                if kind in methods:
                    raise
                continue  # This pair cannot serve it: no draft, no ranges, no arbiter.
            self.methods[kind] = method

    @property
    def default_name(self) -> str:
        """The plain name of what NAME alone stands for."""
        return spec.name_of(self.default)

    def names(self) -> list[str]:
        """NAME and every NAME@METHOD."""
        return [self.name, *(f"{self.name}@{kind}" for kind in self.methods)]

    def find(self, model: str | None, method: str | None, knobs: Mapping[str, Any]) -> Method:
        """The method that a request names by its model or its `method` field, with its knobs.

        Raises UnknownModelError for another model, FieldError for what cannot be.
        """
        wanted = self._named(model, method)
        fields = {field.name for field in dataclasses.fields(wanted)} - PRIVATE  # type: ignore[arg-type]
        unknown = next((name for name in knobs if name not in fields), None)
        if unknown is not None:
            raise FieldError(
                unknown,
                f"{unknown!r} is not a field of this server, nor a knob of the method "
                f"({', '.join(sorted(fields)) or 'it has none'}): drop it",
            )
        texts = {}
        for name, value in knobs.items():
            largest = LARGEST.get(name)
            if largest is not None and isinstance(value, int | float) and value > largest:
                raise FieldError(name, f"{name} is {value}: this server takes at most {largest}")
            if isinstance(value, bool | int | float | str):
                texts[name] = str(value)
            elif value is not None:
                raise FieldError(name, f"{name} is not a number, a text or true or false")
        return spec.with_fields(wanted, texts)

    def _named(self, model: str | None, method: str | None) -> Method:
        name, at, kind = (model or self.name).partition("@")
        if name != self.name or (at and kind not in self.methods):
            raise UnknownModelError(f"no model {model!r}: choose {', '.join(self.names())}")
        if method is None:
            return self.methods[kind] if at else self.default
        if at and method != kind:
            raise FieldError("method", f"method {method!r} contradicts model {model!r}: drop one")
        if method not in self.methods:
            raise FieldError(
                "method", f"method {method!r} is not offered: choose {', '.join(self.methods)}"
            )
        return self.methods[method]
