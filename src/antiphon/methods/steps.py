"""Whole reasoning steps: written as branches of a tree, scored in one pass over the chosen one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from antiphon.drawing import draw_rows
from antiphon.methods.boundary import ends_step
from antiphon.methods.branches import Branches
from antiphon.methods.grounding import Grounding
from antiphon.models.base import Capture, Extension, LanguageModel
from antiphon.request import Commit, Judged, Provenance, Request, Steps, ask, judge
from antiphon.sampling import Context, distribution

AGGREGATES = ("min", "mean", "p10")
"""How a step's tokens become one number."""


@dataclass(slots=True)
class Candidate:
    """A step in the making.

    Attributes:
        tokens, text: what was written.
        nodes: the tree nodes that read it; the last token has none.
        ended: the step is complete: its boundary after some text, or an end token.
        sums: sum of the hidden states that read it.
        judged: what the model that wrote it, or judged it last, says of its tokens.
        who: wrote each token, where not all are the writer's own.
    """

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    nodes: list[int] = field(default_factory=list)
    ended: bool = False
    sums: torch.Tensor | None = None
    judged: list[Judged] = field(default_factory=list)
    who: list[Provenance] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scored:
    """A scoring pass: log-probability and grounding of every token of a step.

    Attributes:
        judged: its tokens, by logits before temperature and truncation.
        grounding: ``[T]``; None where it was not asked for.
        attention: what `Grounding.absorb` takes if the step is accepted.
        nodes: of the step in the tree.
        after: the logits ``[V]`` after it.
        hidden: the last hidden state ``[W]`` at the step's last token; None where it was not
            asked for.
        answer: the logits ``[V]`` after what was read behind the step; None where nothing was.
    """

    judged: tuple[Judged, ...]
    grounding: torch.Tensor | None
    attention: torch.Tensor | None
    nodes: Sequence[int]
    after: torch.Tensor
    hidden: torch.Tensor | None = None
    answer: torch.Tensor | None = None

    @property
    def logprobs(self) -> torch.Tensor:
        """Of the step's tokens, ``[T]``, natural log."""
        return torch.tensor([each.logprob for each in self.judged])


class StepWriter:
    """One model writing steps of one request over a tree of its own.

    The trunk holds the text the model has read; `text` may be ahead of it.

    Args:
        longest: tokens after which a step counts as complete.
        boundary: what closes a step, of `boundary.BOUNDARIES`.
        capture: attention to keep track of, for grounding; None: none.
        residual: see `Grounding`.
    """

    def __init__(
        self,
        model: LanguageModel,
        request: Request,
        longest: int,
        boundary: str,
        capture: Capture | None = None,
        residual: float = 0.0,
    ) -> None:
        self.model, self.request, self.longest = model, request, longest
        self.boundary = boundary
        self.tree = model.new_tree(request.longest)
        self.capture = capture
        self.grounding = Grounding(capture.layers, residual) if capture else None
        self.ends = request.eos_token_ids | frozenset(request.params.stop_token_ids)
        self._next: torch.Tensor | None = None

    def read(self, context: Context) -> Steps[torch.Tensor]:
        """Catch up with the text; returns the logits ``[V]`` after it."""
        unread = (context.prompt + context.output)[self.tree.length :]
        if unread:
            scores = yield from ask(
                Extension(self.model, self.tree, unread, attention=self.capture)
            )
            self.tree.commit(scores.nodes[-1])
            if self.grounding is not None:
                assert scores.attention is not None
                self.grounding.absorb(scores.attention)
            # A row of its own: the logits of a whole pass would be kept with it.
            self._next = scores.logits[-1].clone()
        assert self._next is not None
        return self._next

    def propose(self, context: Context, count: int, embed: bool = False) -> Steps[list[Candidate]]:
        """Write `count` candidates for the next step, side by side.

        Args:
            embed: sum up hidden states on the way.
        """
        room = min(self.longest, self.request.room(len(context.output)))
        first = yield from self.read(context)
        candidates = [Candidate() for _ in range(count)]
        assert self.request.detokenizer is not None
        prefix = context.prompt + context.output
        readers = [self.request.detokenizer(prefix) for _ in candidates]
        rows = dict.fromkeys(range(count), 0)
        logits, hidden = first[None], None
        for _ in range(room):
            going = list(rows)
            contexts = [context.then(candidates[i].tokens) for i in going]
            p = distribution(logits[[rows[i] for i in going]], self.request.params, contexts)
            drawn = draw_rows(p, self.request.randomness.uniforms(len(going)))
            judged = self._judge(logits, drawn, [rows[i] for i in going])
            branches = Branches(self.model, self.tree)
            rows = {}
            for i, token, told in zip(going, drawn, judged, strict=True):
                candidate = candidates[i]
                candidate.tokens.append(token)
                candidate.judged.append(told)
                candidate.text += readers[i].push(token)
                candidate.ended = self.ended(token, candidate.text)
                if candidate.ended or len(candidate.tokens) == room:
                    continue
                parent = candidate.nodes[-1] if candidate.nodes else self.tree.tip
                candidate.nodes += branches.add(parent, (token,))
                rows[i] = branches.score(candidate.nodes[-1])
            if not rows:
                break
            extension = branches.extension(hidden=embed)
            scores = yield from ask(extension)
            logits, hidden = scores.logits, scores.hidden
            for i, row in rows.items():
                if hidden is not None:
                    old = candidates[i].sums
                    candidates[i].sums = hidden[row] if old is None else old + hidden[row]
        return candidates

    def ended(self, token: int, text: str) -> bool:
        """Whether a step is complete that has this text and last token."""
        return token in self.ends or ends_step(text, self.boundary)

    def score(
        self,
        context: Context,
        tokens: list[int],
        hidden: bool = False,
        then: Sequence[int] = (),
    ) -> Steps[Scored]:
        """Read a step as one chain, for its log-probabilities, grounding and hidden state.

        Args:
            then: read behind the step, for the token that would follow; it never joins the text.
                Not for a writer that keeps track of attention.
        """
        first = yield from self.read(context)
        self.tree.prune()
        assert self.grounding is None or not then
        length = len(tokens)
        last = [length + len(then) - 1] if then else []
        scores = yield from ask(
            Extension(
                self.model,
                self.tree,
                (*tokens, *then),
                rows=(*range(length), *last),
                attention=self.capture,
                hidden=hidden,
            )
        )
        grounding = None
        if self.grounding is not None:
            assert scores.attention is not None
            grounding = self.grounding.score(scores.attention)
        return Scored(
            self._judged(first, scores.logits, tokens, range(length - 1)),
            grounding,
            scores.attention,
            scores.nodes[:length],
            scores.logits[length - 1].clone(),
            None if scores.hidden is None else scores.hidden[length - 1],
            scores.logits[-1] if then else None,
        )

    def score_all(self, context: Context, candidates: Sequence[Candidate]) -> Steps[list[Scored]]:
        """Read several steps as branches of one pass, for their log-probabilities."""
        assert self.grounding is None
        first = yield from self.read(context)
        self.tree.prune()
        branches = Branches(self.model, self.tree)
        paths = [branches.add(self.tree.tip, candidate.tokens) for candidate in candidates]
        rows = [[branches.score(node) for node in path] for path in paths]
        scores = yield from ask(branches.extension())
        found = []
        for candidate, path, mine in zip(candidates, paths, rows, strict=True):
            judged = self._judged(first, scores.logits, candidate.tokens, mine[:-1])
            found.append(Scored(judged, None, None, path, scores.logits[mine[-1]].clone()))
        return found

    def accept(self, scored: Scored) -> None:
        """The step that was scored last stands: it joins the trunk."""
        self.tree.commit(scored.nodes[-1])
        self.tree.prune()
        if self.grounding is not None:
            assert scored.attention is not None
            self.grounding.absorb(scored.attention)
        self._next = scored.after

    def keep(self, candidate: Candidate) -> None:
        """A candidate stands: what was read of it joins the trunk, its last token is unread.

        Not for a writer that keeps track of attention: candidates are written without it.
        """
        assert self.grounding is None
        if candidate.nodes:
            self.tree.commit(candidate.nodes[-1])
        self.tree.prune()

    def drop(self) -> None:
        """Forget every candidate."""
        self.tree.prune()

    def _judged(
        self, first: torch.Tensor, logits: torch.Tensor, tokens: Sequence[int], rows: Sequence[int]
    ) -> tuple[Judged, ...]:
        """A step's tokens: the first by the logits ``[V]`` before it, the others by rows."""
        before = self._judge(first[None], tokens[:1], [0])
        return (*before, *self._judge(logits, tokens[1:], rows))

    def _judge(
        self, logits: torch.Tensor, tokens: Sequence[int], rows: Sequence[int]
    ) -> tuple[Judged, ...]:
        return judge(logits, tokens, self.request.params.logprobs, rows) if tokens else ()


def aggregate(how: str, values: torch.Tensor) -> float:
    """One number of a step's tokens."""
    if how == "mean":
        return float(values.mean())
    return float(values.min() if how == "min" else values.float().quantile(0.1))


def step_commit(step: Candidate, accepted: bool, score: float) -> Commit:
    """A step that stands: drafted and accepted, or written by the target.

    Args:
        step: with what whoever judged it says of its tokens.
        score: of the drafted step, also where that was refused.
    """
    writer: Provenance = "draft" if accepted else "target"
    return Commit(
        tokens=tuple(step.tokens),
        provenance=tuple(step.who) or (writer,) * len(step.tokens),
        judged=tuple(step.judged),
        proposed=tuple(step.tokens) if accepted else (),
        notes={"score": round(score, 4), "steps": 1, "fired": 0 if accepted else 1},
    )
