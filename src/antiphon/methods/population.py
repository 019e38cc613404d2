"""A population of particles: texts with weights, grown in lockstep over one tree a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from antiphon.drawing import draw, draw_rows
from antiphon.logprobs import rows_of
from antiphon.methods.base import Models
from antiphon.methods.branches import Branches, settle
from antiphon.methods.particle import Draft, Particle
from antiphon.methods.particles import (
    Floats,
    Resampler,
    ancestors,
    effective_size,
    log_mean,
    normalised,
)
from antiphon.methods.selection import answer, weighted_vote
from antiphon.methods.weighing import Outcome, Round, controlled_blocks, whole_blocks
from antiphon.request import Commit, Judged, Provenance, Request, Steps, ask, judge
from antiphon.sampling import Context, Distributions, distribution
from antiphon.stopping import visible


class Population:
    """N particles of one request.

    Args:
        particles: N.
        draft_temperature: of q; None: the request's.
        power: alpha; weights aim at p^alpha.
    """

    def __init__(
        self,
        request: Request,
        models: Models,
        particles: int,
        draft_temperature: float | None,
        power: float,
    ) -> None:
        assert models.draft is not None
        self.request, self.power = request, power
        self.target, self.draft_model = models.target, models.draft
        self.target_tree = models.target.new_tree(request.longest)
        self.draft_tree = models.draft.new_tree(request.longest)
        params = request.params
        self.draft_params = (
            params if draft_temperature is None else replace(params, temperature=draft_temperature)
        )
        self.ends = request.eos_token_ids | frozenset(params.stop_token_ids)
        self.members = [Particle(request.prompt, request.prompt) for _ in range(particles)]
        self.log_weights: Floats = np.zeros(particles)
        self.log_z = 0.0
        self._sizes: list[float] = []
        self._particles: list[int] = []
        self._ancestry: list[list[int]] = []
        self._slots = self._slots_apart = 0
        self._notes: dict[str, Any] = {"rounds": 0, "fired": 0}
        self._proposed: list[int] = []

    @property
    def unfinished(self) -> list[Particle]:
        return [particle for particle in self.members if not particle.finished]

    @property
    def effective_size(self) -> float:
        return effective_size(self.log_weights)

    def draft(self, gamma: int, keep_q: bool) -> Steps[list[Draft]]:
        """1. Every unfinished particle draws up to gamma tokens from q, step by step.

        Args:
            keep_q: also keep the distributions the tokens are drawn from.
        """
        tree, alive = self.draft_tree, self.unfinished
        drafts = [Draft() for _ in alive]
        branches = Branches(self.draft_model, tree)
        # The round's last token is the target's.
        lengths = [min(gamma, self.request.room(len(one.tokens)) - 1) for one in alive]
        rows: dict[int, int] = {}
        for i, particle in enumerate(alive):
            if lengths[i] < 1:
                continue
            parent = particle.draft_path[-1] if particle.draft_path else tree.tip
            drafts[i].head = branches.add(parent, particle.draft_unread)
            rows[i] = branches.score(drafts[i].head[-1])
        for step in range(max(lengths)):
            scores = yield from ask(branches.extension())
            going = list(rows)
            # Copies of a particle begin in one row: its distribution is computed once.
            holders = {rows[i]: i for i in going}
            contexts = [self._context(alive[i], drafts[i].tokens) for i in holders.values()]
            read = list(holders)
            q = distribution(rows_of(scores.logits, read), self.draft_params, contexts)
            places = [read.index(row) for row in rows.values()]
            tokens = draw_rows(q, self.request.randomness.uniforms(len(going)), places)
            log_q = q[places, tokens].double().log().tolist()
            branches, rows = Branches(self.draft_model, tree), {}
            for i, token, chance, k in zip(going, tokens, log_q, places, strict=True):
                drafts[i].tokens.append(token)
                drafts[i].log_q.append(chance)
                if keep_q:
                    drafts[i].q.append(q[k])
                self._proposed.append(token)
                if token in self.ends or step + 1 == lengths[i]:
                    continue
                parent = drafts[i].nodes[-1] if drafts[i].nodes else drafts[i].head[-1]
                drafts[i].nodes += branches.add(parent, (token,))
                rows[i] = branches.score(drafts[i].nodes[-1])
            if not rows:
                break
        return drafts

    def weigh(self, drafts: Sequence[Draft], bar: float, control: float) -> Steps[None]:
        """2. One target pass scores all drafts; weights grow; a token of the target's each.

        Args:
            bar: cut the block where the effective sample size would fall below this; 0: never.
            control: the c of rejection control, `weighing.controlled_blocks`; 0: none.
        """
        tree, alive = self.target_tree, self.unfinished
        branches = Branches(self.target, tree)
        paths: list[tuple[int, ...]] = []
        rows: list[list[int]] = []
        for particle, draft in zip(alive, drafts, strict=True):
            parent = particle.target_path[-1] if particle.target_path else tree.tip
            paths.append(branches.add(parent, (*particle.target_unread, *draft.tokens)))
            judging = paths[-1][len(particle.target_unread) - 1 :]
            rows.append([branches.score(node) for node in judging])
        scores = yield from ask(branches.extension())
        p = Distributions(
            scores.logits, self.request.params, self._row_contexts(alive, drafts, rows)
        )
        self._count_slots(drafts)

        places = [i for i, particle in enumerate(self.members) if not particle.finished]
        drafted = Round(drafts, rows, p, self.power, self.ends, self.request.randomness)
        if control:
            outcomes = controlled_blocks(drafted, control)
        else:
            outcomes = whole_blocks(drafted, self.log_weights, places, bar)
        for place, draft, path, mine, outcome in zip(
            places, drafts, paths, rows, outcomes, strict=True
        ):
            self.log_weights[place] += outcome.log_gain
            tokens = draft.tokens[: outcome.kept]
            added = [*tokens, *([] if outcome.last is None else [outcome.last])]
            judged = judge(scores.logits, added, self.request.params.logprobs, mine[: len(added)])
            self._grow(self.members[place], draft, tokens, outcome, path, judged)
        self._notes["rounds"] += 1
        self._sizes.append(self.effective_size)
        self._particles.append(len(self.members))

    def weigh_texts(self, potential: Callable[[str], float]) -> None:
        """What the potential has changed by since it was last asked changes the weights."""
        for i, particle in enumerate(self.members):
            value = potential(self._text(particle))
            # From -inf there is no way back: such a text has no weight left to change.
            if particle.potential > -math.inf:
                self.log_weights[i] += value - particle.potential
            self.members[i].potential = value

    def resample(self, scheme: Resampler, particles: int) -> None:
        """3. Copies of heavy particles replace light ones; all weights are equal again.

        Args:
            particles: how many there are afterwards.
        """
        counts = scheme(normalised(self.log_weights), self.request.randomness, particles)
        chosen = ancestors(counts)
        self._ancestry.append(chosen)
        self.members = [replace(self.members[i]) for i in chosen]
        self.log_z += log_mean(self.log_weights)
        self.log_weights = np.zeros(len(self.members))
        self._notes["fired"] += 1

    def settle(self) -> None:
        """4. What all unfinished particles share joins the trunks; dead branches go."""
        alive = self.unfinished
        if not alive:
            return
        target = settle(self.target_tree, [particle.target_path for particle in alive])
        draft = settle(self.draft_tree, [particle.draft_path for particle in alive])
        for particle, below, above in zip(alive, target, draft, strict=True):
            particle.target_path, particle.draft_path = below, above

    def shared(self) -> int:
        """How many tokens all particles have in common from the beginning on."""
        count = 0
        for tokens in zip(*(particle.tokens for particle in self.members), strict=False):
            if len(set(tokens)) > 1:
                break
            count += 1
        return count

    def choose(self, output: str) -> Particle:
        """The particle that is returned.

        Args:
            output: "max", the heaviest; "vote", the heaviest of those whose common answer has
                the most weight; or "sample", one drawn by weight.
        """
        weights = normalised(self.log_weights)
        log_z = self.log_z + log_mean(self.log_weights)
        self._notes |= {
            "log_z": log_z if math.isfinite(log_z) else None,
            "mean_ess": sum(self._sizes) / max(len(self._sizes), 1),
            "mean_particles": sum(self._particles) / max(len(self._particles), 1),
            "resamples": len(self._ancestry),
            "ancestry": self._ancestry,
            "slots": self._slots,
            "slots_apart": self._slots_apart,
            "particles": [
                {"tokens": list(particle.tokens), "weight": float(weight)}
                for particle, weight in zip(self.members, weights, strict=True)
            ],
        }
        if output == "max":
            return self.members[int(weights.argmax())]
        if output == "vote":
            answers = [answer(self._text(particle)) for particle in self.members]
            return self.members[weighted_vote(answers, weights.tolist())]
        return self.members[draw(torch.from_numpy(weights), self.request.randomness.uniform())]

    def commit(self, particle: Particle, start: int, stop: int) -> Commit:
        """Tokens `start` to `stop` of a particle, and what happened since the last commit."""
        notes, self._notes = self._notes, {"rounds": 0, "fired": 0}
        proposed, self._proposed = tuple(self._proposed), []
        return Commit(
            tokens=particle.tokens[start:stop],
            provenance=particle.who[start:stop],
            judged=particle.judged[start:stop],
            proposed=proposed,
            notes=notes,
        )

    def _text(self, particle: Particle) -> str:
        assert self.request.detokenizer is not None
        reader = self.request.detokenizer(self.request.prompt)
        text = "".join(map(reader.push, particle.tokens)) + reader.flush()
        return visible(text, self.request.params.stop)

    def _count_slots(self, drafts: Sequence[Draft]) -> None:
        """The target's slots now, and those of as many sequences with nothing in common."""
        written = sum(len(particle.tokens) for particle in self.members)
        drafted = sum(len(draft.tokens) for draft in drafts)
        apart = len(self.members) * len(self.request.prompt) + written + drafted
        self._slots = max(self._slots, self.target_tree.slots)
        self._slots_apart = max(self._slots_apart, apart)

    def _grow(
        self,
        particle: Particle,
        draft: Draft,
        tokens: list[int],
        outcome: Outcome,
        path: tuple[int, ...],
        judged: tuple[Judged, ...],
    ) -> None:
        read = len(particle.target_unread) + len(tokens)
        particle.target_path += path[:read]
        particle.draft_path += (*draft.head, *draft.nodes[: len(tokens)])
        unread = tokens[len(draft.nodes) :] if draft.head else list(particle.draft_unread)
        particle.tokens += tuple(tokens)
        drafted: list[Provenance] = ["draft"] * len(tokens)
        particle.who += tuple(drafted)
        if outcome.last is not None:
            particle.tokens += (outcome.last,)
            particle.who += (outcome.who,)
            particle.target_unread = (outcome.last,)
            particle.draft_unread = (*unread, outcome.last)
        particle.judged += judged
        ended = particle.tokens[-1] in self.ends
        particle.finished = ended or self.request.room(len(particle.tokens)) <= 0

    def _context(self, particle: Particle, drafted: Sequence[int]) -> Context:
        return Context(self.request.prompt, (*particle.tokens, *drafted))

    def _row_contexts(
        self, alive: Sequence[Particle], drafts: Sequence[Draft], rows: Sequence[Sequence[int]]
    ) -> list[Context]:
        """The history at each row of the target's answer; only penalties look at it."""
        if not self.request.params.uses_history:
            return []
        by_row: dict[int, Context] = {}
        for particle, draft, mine in zip(alive, drafts, rows, strict=True):
            for j, row in enumerate(mine):
                by_row[row] = self._context(particle, draft.tokens[:j])
        return [by_row[row] for row in range(len(by_row))]
