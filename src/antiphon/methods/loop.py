"""The speculative loop: draft, verify in one pass, judge, commit. Rules differ in the judging."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from antiphon.drafting.base import Drafter
from antiphon.drafting.length import BlockLength
from antiphon.models.base import Extension, LanguageModel, Scores
from antiphon.models.tree import KVTree
from antiphon.request import Commit, Provenance, Request, Steps, ask
from antiphon.rules.base import Block, Rescue, Verdict, Veto
from antiphon.rules.evidence import Evidence
from antiphon.rules.exact import exact, greedy
from antiphon.rules.judge import Rules, judge
from antiphon.rules.tree import judge_tree
from antiphon.sampling import Context, Distributions, distribution, favourites, one_hot

Judge = Callable[[Block, Scores, list[Context]], Verdict]
"""Judges a block, given the target's ``K + 1`` rows of scores and the history at each of them."""


def speculate(
    request: Request,
    target: LanguageModel,
    drafter: Drafter,
    length: BlockLength,
    judge: Judge,
    hidden: bool = False,
) -> Steps[None]:
    """Write a text in rounds; see Leviathan et al. 2023 (arXiv 2211.17192), Algorithm 1.

    Args:
        hidden: let the judge see the target's last hidden states, too.
    """
    tree = target.new_tree(request.longest)
    context = Context(request.prompt)
    while True:
        # 1. Draft. Tokens past the output's end would be drafted for nothing.
        gamma = min(length.next(), request.room(context.written) - 1)
        block = (yield from drafter.propose(context, gamma)) if gamma > 0 else EMPTY

        # 2. Score what the target has not read yet and the whole block, in one pass.
        unread = context.since(tree.length)
        scores = yield from ask(verification(target, tree, unread, block, hidden))

        # 3. Judge: an acceptable path of the block stands, and one more token.
        verdict = judge(block, scores, hypothetical(context, block))
        kept = tuple(block.tokens[i] for i in verdict.accepted)
        rows = (0, *(i + 1 for i in verdict.accepted))
        drafted: list[Provenance] = ["draft"] * len(kept)
        own: Provenance = verdict.provenance if block.tokens else "target"
        yield Commit(
            tokens=(*kept, verdict.token),
            provenance=(*drafted, own),
            logits=scores.logits,
            rows=rows,
            proposed=block.tokens,
            notes=verdict.notes,
        )

        # 4. The accepted path joins the trunk of both trees; the rest of the crown goes.
        tree.commit(scores.nodes[len(unread) - 1 + rows[-1]])
        tree.prune()
        drafter.settle(verdict.accepted)
        length.observe(min(gamma, len(block)), len(kept))
        context = context.then((*kept, verdict.token))


def exact_judge(request: Request) -> Judge:
    """The exact rule, for chains and trees."""

    def decide(block: Block, scores: Scores, contexts: list[Context]) -> Verdict:
        logits = scores.logits
        if request.params.greedy:
            return greedy(block, favourites(logits, request.params, contexts))
        p = Distributions(logits, request.params, contexts)
        return exact(block, p, request.randomness)

    return decide


def chain_judge(
    request: Request,
    rules: Rules,
    asked: Callable[[Evidence, int, bool], None] | None = None,
) -> Judge:
    """A composition of rules, for chains; `asked`: see `rules.judge.judge`."""
    at_zero, opened = request.params.greedy, request.params.opened

    def decide(block: Block, scores: Scores, contexts: list[Context]) -> Verdict:
        logits = scores.logits
        p = distribution(logits, request.params, contexts)
        if not block.tokens:
            return exact(block, p, request.randomness)
        tokens = torch.tensor(block.tokens, device=p.device)
        q = one_hot(tokens, p.shape[-1]) if block.q is None else torch.stack(block.q)
        P = distribution(logits, opened, contexts) if at_zero else p
        Q = q if block.belief is None else torch.stack(block.belief)
        evidence = Evidence(tokens, p, q, P, Q, at_zero, scores.hidden)
        return judge(rules, evidence, request.randomness, asked)

    return decide


def tree_judge(request: Request, rescue: Rescue | None, veto: Veto | None) -> Judge:
    """The exact rule with a rescue and a veto, for several chains."""
    at_zero, opened = request.params.greedy, request.params.opened

    def decide(block: Block, scores: Scores, contexts: list[Context]) -> Verdict:
        p = Distributions(scores.logits, request.params, contexts)
        P = Distributions(scores.logits, opened, contexts) if at_zero else p

        def along(path: list[int]) -> Evidence:
            """The chain from the block's root down to a token."""
            rows = [0, *(token + 1 for token in path)]
            logits = scores.logits
            tokens = torch.tensor([block.tokens[token] for token in path], device=logits.device)
            drawn = [dict(block.draws[row])[token] for row, token in zip(rows, path, strict=False)]
            q = one_hot(tokens, logits.shape[-1]) if block.q is None else _rows(block.q, drawn)
            Q = q if block.belief is None else _rows(block.belief, drawn)
            hidden = None if scores.hidden is None else scores.hidden[rows]
            return Evidence(tokens, _rows(p, rows), q, _rows(P, rows), Q, at_zero, hidden)

        return judge_tree(block, p, along, rescue, veto, request.randomness)

    return decide


def _rows(table: Distributions | Sequence[torch.Tensor], rows: Sequence[int]) -> torch.Tensor:
    return torch.stack([table[row] for row in rows])


EMPTY = Block((), (), ((),))
"""A block without drafts: the round is a plain target pass."""


def verification(
    target: LanguageModel,
    tree: KVTree,
    unread: tuple[int, ...],
    block: Block,
    hidden: bool = False,
) -> Extension:
    """One pass over the unread text and the block; its ``K + 1`` rows are the block's rows."""
    first = tree.next_node + len(unread) - 1
    return Extension(
        target,
        tree,
        tokens=unread + block.tokens,
        parents=(*tree.chain(tree.tip, len(unread)), *(first + row for row in block.parents)),
        rows=tuple(range(len(unread) - 1, len(unread) + len(block))),
        hidden=hidden,
    )


def hypothetical(context: Context, block: Block) -> list[Context]:
    """The history at each row of the block, as if the drafts above it stood; ``K + 1``."""
    contexts = [context]
    for token, row in zip(block.tokens, block.parents, strict=True):
        contexts.append(contexts[row].then((token,)))
    return contexts
