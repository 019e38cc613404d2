"""Decoding methods, one file each; `METHODS` finds them by name."""

from antiphon.methods.autoregressive import Autoregressive
from antiphon.methods.base import Method, Models
from antiphon.methods.speculative import Speculative

METHODS: dict[str, type[Autoregressive] | type[Speculative]] = {
    "autoregressive": Autoregressive,
    "speculative": Speculative,
}
"""Command-line name -> configuration class."""

__all__ = ["METHODS", "Autoregressive", "Method", "Models", "Speculative"]
