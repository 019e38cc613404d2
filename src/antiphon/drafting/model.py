"""A draft model: one chain of samples, or several independent ones from the same prefix."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch

from antiphon.models.base import Extension, LanguageModel
from antiphon.request import Request, Steps, ask
from antiphon.rules.base import Block
from antiphon.rules.evidence import entropy
from antiphon.sampling import Context, distribution, draw


class DraftModel:
    """Drafts with a (small) language model over its own tree.

    At temperature 0 one chain is the draft's argmax path; with several chains, chain ``c``
    starts with the draft's ``c``-th best token (without that they would all be the same).
    Both are deterministic, so their q is one-hot.

    Args:
        model: the draft.
        request: the request it drafts for; its sampling pipeline shapes q.
        chains: independent chains per block.
        confidence: stop drafting where the draft's largest probability falls below this. The
            test looks at the distribution, never at the token drawn, so it biases nothing.
        adaedl: stop drafting where ``1 - sqrt(0.2 H(q))`` falls below this (AdaEDL, arXiv
            2410.18351: a lower bound of the acceptance); 0: never.
        beliefs: keep what the draft thought at temperature 1 in greedy blocks, too.
    """

    def __init__(
        self,
        model: LanguageModel,
        request: Request,
        chains: int = 1,
        confidence: float = 0.0,
        adaedl: float = 0.0,
        beliefs: bool = False,
    ) -> None:
        self.model = model
        self.request = request
        self.chains = chains
        self.confidence = confidence
        self.adaedl = adaedl
        self.beliefs = beliefs
        greedy = request.params.greedy
        # At temperature 0 q is one-hot: how sure the draft is shows at temperature 1.
        self._open = replace(request.params, temperature=1.0) if greedy else request.params
        self._opens = greedy and (beliefs or confidence > 0 or adaedl > 0)
        self.tree = model.new_tree(request.longest)
        self._node_of: dict[int, int] = {}

    def propose(self, context: Context, gamma: int) -> Steps[Block]:
        # 1. Read what the text has gained since the last block.
        unread = (context.prompt + context.output)[self.tree.length :]
        scores = yield from ask(Extension(self.model, self.tree, unread))
        self.tree.commit(scores.nodes[-1])

        block = _Draft()
        self._node_of = {}
        tips = [_Tip(row=0, node=self.tree.tip, context=context, chains=self.chains)]
        for depth in range(gamma):
            # 2. Draw one token per chain; chains that drew the same token go on together.
            contexts = [tip.context for tip in tips]
            q = distribution(scores.logits, self.request.params, contexts)
            belief = distribution(scores.logits, self._open, contexts) if self._opens else q
            grown: dict[int, _Tip] = {}
            for tip, q_row, thought, logits in zip(tips, q, belief, scores.logits, strict=True):
                if self._unsure(thought):
                    continue
                for token, source in self._draws(q_row, logits, tip.chains, root=depth == 0):
                    child = block.add(tip.row, token, source, thought)
                    if child not in grown:
                        after = tip.context.then((token,))
                        grown[child] = _Tip(child + 1, tip.node, after, chains=0)
                    grown[child].chains += 1

            # 3. Read the new tokens, but for the last ones and those that end the text.
            alive = [c for c in grown if block.tokens[c] not in self.request.eos_token_ids]
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
        return block.finish(self.model.vocab_size, self.beliefs)

    def settle(self, accepted: tuple[int, ...]) -> None:
        read = [self._node_of[child] for child in accepted if child in self._node_of]
        if read:
            self.tree.commit(read[-1])
        self.tree.prune()

    def _unsure(self, thought: torch.Tensor) -> bool:
        if self.confidence and float(thought.max()) < self.confidence:
            return True
        if not self.adaedl:
            return False
        return 1 - math.sqrt(_ADAEDL * float(entropy(thought))) < self.adaedl

    def _draws(
        self, q: torch.Tensor, logits: torch.Tensor, count: int, root: bool
    ) -> list[tuple[int, torch.Tensor]]:
        """`count` draws after one prefix: pairs (token, the distribution it came from)."""
        if not self.request.params.greedy:
            return [(draw(q, self.request.randomness.uniform()), q) for _ in range(count)]
        best = int(q.argmax())
        if not root or count == 1:
            return [(best, q)]
        ranked = logits.topk(min(count, len(logits))).indices.tolist()
        others = [token for token in ranked if token != best][: count - 1]
        return [(best, q), *((token, _one_hot(token, q)) for token in others)]


@dataclass(slots=True)
class _Tip:
    """Where one or more chains stand: their row in the block, their node in the tree."""

    row: int
    node: int
    context: Context
    chains: int


@dataclass(slots=True)
class _Draft:
    """A `Block` in the making."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    draws: list[list[tuple[int, int]]] = field(default_factory=lambda: [[]])
    q: list[torch.Tensor] = field(default_factory=list)
    thoughts: list[torch.Tensor] = field(default_factory=list)

    def add(self, row: int, token: int, q: torch.Tensor, thought: torch.Tensor) -> int:
        """Record a draw at `row`; returns the token's index, an old one if it is there."""
        child = next((c for c, _ in self.draws[row] if self.tokens[c] == token), None)
        if child is None:
            child = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(row)
            self.draws.append([])
        self.draws[row].append((child, len(self.q)))
        self.q.append(q)
        self.thoughts.append(thought)
        return child

    def finish(self, vocab_size: int, beliefs: bool) -> Block:
        q = torch.stack(self.q) if self.q else torch.empty(0, vocab_size)
        belief = torch.stack(self.thoughts) if beliefs and self.thoughts else None
        draws = tuple(map(tuple, self.draws))
        return Block(tuple(self.tokens), tuple(self.parents), draws, q, belief)


_ADAEDL = 0.2
"""The factor of the entropy in AdaEDL's bound."""


def _one_hot(token: int, like: torch.Tensor) -> torch.Tensor:
    row = torch.zeros_like(like)
    row[token] = 1.0
    return row
