"""Decoding methods, one file each; `METHODS` finds them by name."""

from antiphon.methods.autoregressive import Autoregressive, DraftOnly
from antiphon.methods.base import Method, Models
from antiphon.methods.easd import EASD
from antiphon.methods.smc import SMC
from antiphon.methods.specguard import SpecGuard
from antiphon.methods.speculative import Speculative

METHODS: dict[
    str,
    type[Autoregressive]
    | type[DraftOnly]
    | type[Speculative]
    | type[EASD]
    | type[SMC]
    | type[SpecGuard],
] = {
    "autoregressive": Autoregressive,
    "draft-only": DraftOnly,
    "speculative": Speculative,
    "easd": EASD,
    "smc": SMC,
    "specguard": SpecGuard,
}
"""Command-line name -> configuration class."""

__all__ = [
    "EASD",
    "METHODS",
    "SMC",
    "Autoregressive",
    "DraftOnly",
    "Method",
    "Models",
    "SpecGuard",
    "Speculative",
]
