"""Autoregressive decoding: the target alone, one token a pass. The reference for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from antiphon.methods.base import Models
from antiphon.models.base import Extension
from antiphon.request import Commit, Request, Steps, ask
from antiphon.sampling import Context, distribution, draw


@dataclass(frozen=True, slots=True)
class Autoregressive:
    """No knobs: what there is to choose is in the request's sampling parameters."""

    GUARANTEE: ClassVar[str] = "the reference: the target alone"
    SOURCE: ClassVar[str] = "-"

    def check(self, models: Models) -> None:
        """Any target will do."""

    def run(self, request: Request, models: Models) -> Steps[None]:
        target = models.target
        tree = target.new_tree(request.longest)
        context = Context(request.prompt)
        unread = request.prompt
        while True:
            scores = yield from ask(Extension(target, tree, unread))
            tree.commit(scores.nodes[-1])

            p = distribution(scores.logits, request.params, [context])
            token = draw(p[0], request.randomness.uniform())
            yield Commit((token,), ("target",), scores.logits)

            context = context.then((token,))
            unread = (token,)
