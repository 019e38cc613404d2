"""A draft model: one chain of samples, or several independent ones from the same prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from antiphon.drafting.pace import Pace
from antiphon.drawing import draw
from antiphon.models.base import Extension, LanguageModel
from antiphon.request import Request, Steps, ask
from antiphon.rules.base import Block
from antiphon.rules.evidence import entropy
from antiphon.sampling import Context, Distributions, argmax_rows, shaped


class DraftModel:
    """Drafts with a (small) language model over its own tree.

    At temperature 0 one chain is the draft's argmax path; with several chains, chain ``c``
    starts with the draft's ``c``-th best token (without that they would all be the same).
    Both are deterministic, so their blocks carry no q.

    Args:
        model: the draft.
        request: the request it drafts for; its sampling pipeline shapes q.
        chains: independent chains per block.
        confidence: stop drafting where the draft's largest probability falls below this. The
            test looks at the distribution, never at the token drawn, so it biases nothing.
        adaedl: stop drafting where ``1 - sqrt(0.2 H(q))`` falls below this (AdaEDL, arXiv
            2410.18351: a lower bound of the acceptance); 0: never.
        beliefs: keep what the draft thought at temperature 1 in greedy blocks, too.
        pace: also ends a chain; None: nothing does.
    """

    def __init__(
        self,
        model: LanguageModel,
        request: Request,
        chains: int = 1,
        confidence: float = 0.0,
        adaedl: float = 0.0,
        beliefs: bool = False,
        pace: Pace | None = None,
    ) -> None:
        self.model = model
        self.request = request
        self.chains = chains
        self.confidence = confidence
        self.adaedl = adaedl
        self.beliefs = beliefs
        self.pace = pace
        # At temperature 0 q is one-hot: how sure the draft is shows at temperature 1.
        self._open = request.params.opened
        doubts = confidence > 0 or adaedl > 0 or pace is not None
        self._thinks = not request.params.greedy or beliefs or doubts
        self.tree = model.new_tree(request.longest)
        self._node_of: dict[int, int] = {}

    def propose(self, context: Context, gamma: int) -> Steps[Block]:
        params = self.request.params
        # 1. Read what the text has gained since the last block.
        unread = context.since(self.tree.length)
        scores = yield from ask(Extension(self.model, self.tree, unread))
        self.tree.commit(scores.nodes[-1])

        block = _Draft()
        self._node_of = {}
        tips = [_Tip(row=0, node=self.tree.tip, context=context, chains=self.chains)]
        for depth in range(gamma):
            # 2. Draw one token per chain; chains that drew the same token go on together.
            contexts = [tip.context for tip in tips]
            thoughts = Distributions(scores.logits, self._open, contexts) if self._thinks else None
            ranks = shaped(scores.logits, params, contexts) if params.greedy else None
            best = [] if ranks is None else argmax_rows(ranks)
            grown: dict[int, _Tip] = {}
            for i, tip in enumerate(tips):
                thought = thoughts[i] if thoughts else None
                if thought is not None and self._unsure(thought):
                    continue
                if ranks is not None:
                    drawn = _ranked(best[i], ranks[i], 1 if depth else tip.chains)
                else:
                    assert thought is not None
                    drawn = self._draws(thought, tip.chains)
                for token in drawn:
                    child = block.add(tip.row, token, thought)
                    if child not in grown:
                        after = tip.context.then((token,))
                        chance = tip.chance * self._stands(thought, token)
                        grown[child] = _Tip(child + 1, tip.node, after, 0, chance)
                    grown[child].chains += 1

            # 3. Read the new tokens, but for the last ones and those that end the text.
            alive = [
                c
                for c in grown
                if block.tokens[c] not in self.request.eos_token_ids
                and (self.pace is None or self.pace.pays(grown[c].chance))
            ]
            if depth + 1 == gamma or not alive:
                break
            scores = yield from ask(
                Extension(
                    self.model,
                    self.tree,
                    tokens=tuple(block.tokens[c] for c in alive),
                    parents=tuple(grown[c].node for c in alive),
                    rows=tuple(range(len(alive))),
                )
            )
            for child, node in zip(alive, scores.nodes, strict=True):
                grown[child].node = self._node_of[child] = node
            tips = [grown[c] for c in alive]
        return block.finish(params.greedy, self.beliefs)

    def settle(self, accepted: tuple[int, ...]) -> None:
        read = [self._node_of[child] for child in accepted if child in self._node_of]
        if read:
            self.tree.commit(read[-1])
        self.tree.prune()

    def _stands(self, thought: torch.Tensor | None, token: int) -> float:
        """The chance that a token just drawn is accepted; 1 where nobody asks."""
        if self.pace is None or thought is None:
            return 1.0
        sure = float(thought[token] if self.request.params.greedy else thought.max())
        if self.chains == 1:
            self.pace.sure.append(sure)
        return self.pace.chance(sure)

    def _unsure(self, thought: torch.Tensor) -> bool:
        if self.confidence and float(thought.max()) < self.confidence:
            return True
        if not self.adaedl:
            return False
        return 1 - math.sqrt(_ADAEDL * float(entropy(thought))) < self.adaedl

    def _draws(self, q: torch.Tensor, count: int) -> list[int]:
        return [draw(q, self.request.randomness.uniform()) for _ in range(count)]


@dataclass(slots=True)
class _Tip:
    """Where one or more chains stand: their row in the block, their node in the tree.

    Attributes:
        chance: that all of it stands.
    """

    row: int
    node: int
    context: Context
    chains: int
    chance: float = 1.0


@dataclass(slots=True)
class _Draft:
    """A `Block` in the making."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    draws: list[list[tuple[int, int]]] = field(default_factory=lambda: [[]])
    thoughts: list[torch.Tensor | None] = field(default_factory=list)

    def add(self, row: int, token: int, thought: torch.Tensor | None) -> int:
        """Record a draw at `row`; returns the token's index, an old one if it is there."""
        child = next((c for c, _ in self.draws[row] if self.tokens[c] == token), None)
        if child is None:
            child = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(row)
            self.draws.append([])
        self.draws[row].append((child, len(self.thoughts)))
        self.thoughts.append(thought)
        return child

    def finish(self, greedy: bool, beliefs: bool) -> Block:
        thoughts = tuple(thought for thought in self.thoughts if thought is not None)
        return Block(
            tokens=tuple(self.tokens),
            parents=tuple(self.parents),
            draws=tuple(map(tuple, self.draws)),
            q=None if greedy else thoughts,
            belief=thoughts if greedy and beliefs else None,
        )


_ADAEDL = 0.2
"""The factor of the entropy in AdaEDL's bound."""


def _ranked(best: int, scores: torch.Tensor, count: int) -> list[int]:
    """The `count` best tokens of shaped scores ``[V]``, beginning with the one sampling prefers."""
    if count == 1:
        return [best]
    ranked = scores.topk(min(count, len(scores)))
    possible = ranked.indices[ranked.values > -math.inf].tolist()
    return [best, *[token for token in possible if token != best][: count - 1]]
