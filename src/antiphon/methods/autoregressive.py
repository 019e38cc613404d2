"""Autoregressive decoding: one model alone, one token a pass. The reference for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from antiphon.errors import UserError
from antiphon.methods.base import Models
from antiphon.models.base import Extension, LanguageModel
from antiphon.params import SamplingParams
from antiphon.request import Commit, Provenance, Request, Steps, ask
from antiphon.sampling import Context, choose


@dataclass(frozen=True, slots=True)
class Autoregressive:
    """No knobs: what there is to choose is in the request's sampling parameters."""

    GUARANTEE: ClassVar[str] = "the reference: the target alone"
    SOURCE: ClassVar[str] = "-"

    def check(self, models: Models, params: SamplingParams) -> None:
        """Any target will do."""

    def run(self, request: Request, models: Models) -> Steps[None]:
        return write(models.target, "target", request)


@dataclass(frozen=True, slots=True)
class DraftOnly:
    """The draft alone: the fast and less able end of every comparison.

    What a result reports as log-probabilities are the draft's here: the target reads nothing.
    """

    GUARANTEE: ClassVar[str] = "none: the draft alone"
    SOURCE: ClassVar[str] = "-"

    def check(self, models: Models, params: SamplingParams) -> None:
        if models.draft is None:
            raise UserError("draft-only needs a draft model: give --draft PATH or --draft self")

    def run(self, request: Request, models: Models) -> Steps[None]:
        assert models.draft is not None
        return write(models.draft, "draft", request)


def write(model: LanguageModel, who: Provenance, request: Request) -> Steps[None]:
    """Draw token after token from one model; `who` signs them."""
    tree = model.new_tree(request.longest)
    context = Context(request.prompt)
    unread = request.prompt
    while True:
        scores = yield from ask(Extension(model, tree, unread))
        tree.commit(scores.nodes[-1])

        (token,) = choose(scores.logits, request.params, [context], request.randomness)
        yield Commit((token,), (who,), scores.logits)

        context = context.then((token,))
        unread = (token,)
