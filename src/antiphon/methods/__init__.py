"""Decoding methods, one file each; `METHODS` finds them by name."""

from typing import Any

from antiphon.methods.autoregressive import Autoregressive, DraftOnly
from antiphon.methods.base import Method, Models
from antiphon.methods.cospec import CoSpec
from antiphon.methods.easd import EASD
from antiphon.methods.majority import Majority
from antiphon.methods.rsd import RSD
from antiphon.methods.smc import SMC
from antiphon.methods.specguard import SpecGuard
from antiphon.methods.specreason import SpecReason
from antiphon.methods.speculative import Speculative
from antiphon.methods.stepscore import StepScore

METHODS: dict[str, type[Any]] = {
    "autoregressive": Autoregressive,
    "draft-only": DraftOnly,
    "majority": Majority,
    "speculative": Speculative,
    "easd": EASD,
    "cospec": CoSpec,
    "specguard": SpecGuard,
    "rsd": RSD,
    "specreason": SpecReason,
    "stepscore": StepScore,
    "smc": SMC,
}
"""Command-line name -> configuration class."""

__all__ = [
    "EASD",
    "METHODS",
    "RSD",
    "SMC",
    "Autoregressive",
    "CoSpec",
    "DraftOnly",
    "Majority",
    "Method",
    "Models",
    "SpecGuard",
    "SpecReason",
    "Speculative",
    "StepScore",
]
