"""What a decoding method is: a frozen configuration that can run one request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from antiphon.costs import PairCosts
from antiphon.models.base import LanguageModel
from antiphon.params import SamplingParams
from antiphon.profile import Profile
from antiphon.request import Request, Steps


@dataclass(frozen=True, slots=True)
class Models:
    """The models a method may ask: the target, a draft if there is one, and what passes cost.

    Attributes:
        target, draft: language models with one vocabulary.
        costs: measured pass costs, for methods that choose by them; None: not measured.
        profile: the pair's thresholds; None: none are known.
        pair: the pair's fingerprint, for what was made for one pair; None: not known.
        encode: text to token ids, without special ones; None: not known.
    """

    target: LanguageModel
    draft: LanguageModel | None = None
    costs: PairCosts | None = None
    profile: Profile | None = None
    pair: str | None = None
    encode: Callable[[str], tuple[int, ...]] | None = None


class Method(Protocol):
    """A method's configuration. `run` is the algorithm, for one request, top to bottom."""

    def check(self, models: Models, params: SamplingParams) -> None:
        """Raise UserError if these models cannot serve the method with these parameters."""
        ...

    def run(self, request: Request, models: Models) -> Steps[None]:
        """Yield events until the engine stops asking; a method need not end by itself."""
        ...
