"""Exact speculative decoding: the draft speaks where it echoes the target.

Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318). The output is
distributed exactly as the target's own; at temperature 0 it is the target's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from antiphon.drafting.base import Drafter
from antiphon.drafting.length import BlockLength, FittedLength, FixedLength
from antiphon.drafting.model import DraftModel
from antiphon.drafting.ngram import NGram
from antiphon.errors import UserError
from antiphon.methods.base import Models
from antiphon.models.base import Extension, LanguageModel
from antiphon.models.tree import KVTree
from antiphon.request import Commit, Provenance, Request, Steps, ask
from antiphon.rules.base import Block
from antiphon.rules.exact import exact
from antiphon.sampling import Context, distribution


@dataclass(frozen=True, slots=True)
class Speculative:
    """Configuration.

    Attributes:
        gamma: draft tokens per round and chain, or "auto": what pays best under the measured
            pass costs and the acceptance seen so far.
        drafter: "model", or "ngram" (prompt lookup, no draft model).
        chains: independent chains per round, verified in one pass (multi-draft).
        confidence: stop drafting where the draft's largest probability falls below this.
        ngram: longest suffix that prompt lookup searches for.
    """

    GUARANTEE: ClassVar[str] = "the output distribution is the target's"
    SOURCE: ClassVar[str] = "arXiv 2211.17192, 2302.01318; multi-draft: 2305.09781"

    gamma: int | Literal["auto"] = 4
    drafter: Literal["model", "ngram"] = "model"
    chains: int = 1
    confidence: float = 0.0
    ngram: int = 4

    def __post_init__(self) -> None:
        if self.gamma != "auto" and (not _is_int(self.gamma) or self.gamma < 1):
            raise UserError(f"gamma is {self.gamma!r}: give a whole number >= 1, or 'auto'")
        if self.drafter not in ("model", "ngram"):
            raise UserError(f"drafter is {self.drafter!r}: choose 'model' or 'ngram'")
        if not _is_int(self.chains) or self.chains < 1:
            raise UserError(f"chains is {self.chains!r}: give a whole number >= 1")
        if self.drafter == "ngram" and self.chains > 1:
            raise UserError("prompt lookup drafts one chain: use chains=1, or a draft model")
        if not 0.0 <= self.confidence <= 1.0:
            raise UserError(f"confidence is {self.confidence!r}: give a probability, 0 to 1")
        if self.confidence and self.drafter == "ngram":
            raise UserError("prompt lookup has no probabilities: drop confidence")
        if not _is_int(self.ngram) or self.ngram < 2:
            raise UserError(f"ngram is {self.ngram!r}: give a whole number >= 2")

    def check(self, models: Models) -> None:
        if self.drafter == "model" and models.draft is None:
            raise UserError(
                "speculative decoding needs a draft: "
                "give --draft PATH, --draft self or --draft ngram"
            )
        if self.gamma == "auto" and models.costs is None:
            raise UserError("gamma 'auto' needs measured pass costs: load the pair with costs=True")

    def run(self, request: Request, models: Models) -> Steps[None]:
        target = models.target
        tree = target.new_tree(request.longest)
        drafter = self._drafter(request, models)
        length = self._length(models)
        context = Context(request.prompt)
        while True:
            # 1. Draft. Tokens past the output's end would be drafted for nothing.
            gamma = min(length.next(), request.room(len(context.output)) - 1)
            block = (yield from drafter.propose(context, gamma)) if gamma > 0 else EMPTY

            # 2. Score what the target has not read yet and the whole block, in one pass.
            unread = (context.prompt + context.output)[tree.length :]
            scores = yield from ask(verification(target, tree, unread, block))
            p = distribution(scores.logits, request.params, hypothetical(context, block))

            # 3. Judge: the longest acceptable path of the block stands, and one more token.
            verdict = exact(block, p, request.randomness)
            kept = tuple(block.tokens[i] for i in verdict.accepted)
            rows = [0, *(i + 1 for i in verdict.accepted)]
            drafted: list[Provenance] = ["draft"] * len(kept)
            own: Provenance = verdict.provenance if block.tokens else "target"
            yield Commit(
                tokens=(*kept, verdict.token),
                provenance=(*drafted, own),
                logits=scores.logits[rows],
                proposed=block.tokens,
            )

            # 4. The accepted path joins the trunk of both trees; the rest of the crown goes.
            tree.commit(scores.nodes[len(unread) - 1 + rows[-1]])
            tree.prune()
            drafter.settle(verdict.accepted)
            length.observe(min(gamma, len(block)), len(kept))
            context = context.then((*kept, verdict.token))

    def _drafter(self, request: Request, models: Models) -> Drafter:
        if self.drafter == "ngram":
            return NGram(models.target.vocab_size, longest=self.ngram)
        assert models.draft is not None
        return DraftModel(models.draft, request, self.chains, self.confidence)

    def _length(self, models: Models) -> BlockLength:
        if self.gamma != "auto":
            return FixedLength(self.gamma)
        assert models.costs is not None
        if models.profile is None or self.drafter != "model":
            return FittedLength(models.costs)
        return FittedLength(models.costs, acceptance=models.profile.acceptance)


EMPTY = Block((), (), ((),), torch.empty(0, 0))
"""A block without drafts: the round is a plain target pass."""


def verification(
    target: LanguageModel, tree: KVTree, unread: tuple[int, ...], block: Block
) -> Extension:
    """One pass over the unread text and the block; its ``K + 1`` rows are the block's rows."""
    first = tree.next_node + len(unread) - 1
    return Extension(
        target,
        tree,
        tokens=unread + block.tokens,
        parents=(*tree.chain(tree.tip, len(unread)), *(first + row for row in block.parents)),
        rows=tuple(range(len(unread) - 1, len(unread) + len(block))),
    )


def hypothetical(context: Context, block: Block) -> list[Context]:
    """The history at each row of the block, as if the drafts above it stood; ``K + 1``."""
    contexts = [context]
    for token, row in zip(block.tokens, block.parents, strict=True):
        contexts.append(contexts[row].then((token,)))
    return contexts


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
