"""How the target writes a refused step: token by token, or speculatively with the draft's help.

Speculation with the exact rule leaves the step's distribution what it was, and is SpecReason's
"+Decode" (arXiv 2504.07891, section 4.2), for every method of whole steps.
"""

from __future__ import annotations

from typing import Literal

import torch

from antiphon.drafting.model import DraftModel
from antiphon.methods.base import Models
from antiphon.methods.loop import EMPTY, exact_judge, hypothetical, verification
from antiphon.methods.speculative import block_length, pace_of
from antiphon.methods.steps import Candidate, Scored, StepWriter
from antiphon.models.base import Extension, Scores
from antiphon.request import Provenance, Steps, ask, judge
from antiphon.rules.base import Block
from antiphon.sampling import Context


class Redo:
    """Keeps accepted steps, and has the target write the others.

    Args:
        target, draft: the writers, whose trees the steps join.
        gamma: draft tokens a round, where the target writes, or "auto"; 0: token by token. The
            draft helps over a tree of its own, which catches up with the text at every refused
            step.
    """

    def __init__(
        self,
        target: StepWriter,
        draft: StepWriter,
        gamma: int | Literal["auto"],
        models: Models,
    ) -> None:
        self.target, self.draft = target, draft
        self.request = target.request
        self._judge = exact_judge(self.request)
        self._length = block_length(gamma, "model", self.request.params, models)
        pace = pace_of(self._length)
        self._drafter = DraftModel(draft.model, self.request, pace=pace) if gamma else None

    def settle(
        self, context: Context, step: Candidate | None, scored: Scored | None
    ) -> Steps[Candidate]:
        """The step that stands: the draft's, or one the target writes in its place.

        Args:
            step: what was drafted, if anything was.
            scored: what the target read, if it is accepted; None: it is not.
        """
        if step is None or scored is None:
            self.draft.drop()
            self.target.drop()
            return (yield from self.write(context))
        self.target.accept(scored)
        self.draft.keep(step)
        step.judged = list(scored.judged)
        return step

    def write(self, context: Context) -> Steps[Candidate]:
        """The target's next step; it stands."""
        if self._drafter is not None:
            return (yield from self._speculate(context, self._drafter))
        (step,) = yield from self.target.propose(context, 1)
        self.target.keep(step)
        return step

    def _speculate(self, context: Context, drafter: DraftModel) -> Steps[Candidate]:
        tree = self.target.tree
        assert self.request.detokenizer is not None
        reader = self.request.detokenizer(context.prompt + context.output)
        room = min(self.target.longest, self.request.room(len(context.output)))
        step = Candidate()
        while not step.ended and len(step.tokens) < room:
            # As in `loop.speculate`: draft, score, judge.
            here = context.then(step.tokens)
            gamma = min(self._length.next(), room - len(step.tokens) - 1)
            block = (yield from drafter.propose(here, gamma)) if gamma > 0 else EMPTY
            scores, nodes = yield from self._score(here, block)
            verdict = self._judge(block, scores, hypothetical(here, block))

            kept = [block.tokens[i] for i in verdict.accepted]
            self._length.observe(min(gamma, len(block)), len(kept))
            own: Provenance = verdict.provenance if block.tokens else "target"
            signed: list[Provenance] = ["draft"] * len(kept)
            rows = (0, *(i + 1 for i in verdict.accepted))
            new = [*kept, verdict.token]
            told = judge(scores.logits, new, self.request.params.logprobs, rows)
            # A step may end within the block; what follows it falls.
            count = 0
            for token, who, each in zip(new, [*signed, own], told, strict=True):
                step.tokens.append(token)
                step.who.append(who)
                step.judged.append(each)
                step.text += reader.push(token)
                count += 1
                step.ended = self.target.ended(token, step.text)
                if step.ended:
                    break
            # The last token stays unread in both trees: somebody will want the logits after it.
            tree.commit(nodes[rows[count - 1]])
            tree.prune()
            drafter.settle(verdict.accepted[: count - 1])
        return step

    def _score(self, here: Context, block: Block) -> Steps[tuple[Scores, list[int]]]:
        """The target's ``K + 1`` rows for a block, and the nodes they follow."""
        tree, model = self.target.tree, self.target.model
        unread = here.since(tree.length)
        if unread:
            scores = yield from ask(verification(model, tree, unread, block))
            return scores, list(scores.nodes[len(unread) - 1 :])
        # The refused step was read behind all of the text: the first row is known.
        first = yield from self.target.read(here)
        if not block.tokens:
            return Scores(first[None], range(0)), [tree.tip]
        chain = tree.chain(tree.tip, len(block))
        rows = tuple(range(len(block)))
        scores = yield from ask(Extension(model, tree, block.tokens, chain, rows))
        joined = torch.cat([first[None], scores.logits])
        return Scores(joined, scores.nodes), [tree.tip, *scores.nodes]
