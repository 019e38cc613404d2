"""A population of particles: texts with weights, grown in lockstep over one tree a model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from antiphon.drawing import Randomness, draw, draw_rows
from antiphon.methods.base import Models
from antiphon.methods.branches import Branches, settle
from antiphon.methods.particle import Draft, Particle
from antiphon.methods.particles import (
    Counts,
    Floats,
    ancestors,
    effective_size,
    log_mean,
    normalised,
)
from antiphon.methods.selection import answer, weighted_vote
from antiphon.request import Commit, Judged, Provenance, Request, Steps, ask, judge
from antiphon.sampling import Context, distribution


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
        self._notes: dict[str, Any] = {"rounds": 0, "fired": 0}
        self._proposed: list[int] = []

    @property
    def unfinished(self) -> list[Particle]:
        return [particle for particle in self.members if not particle.finished]

    @property
    def effective_size(self) -> float:
        return effective_size(self.log_weights)

    def draft(self, gamma: int) -> Steps[list[Draft]]:
        """1. Every unfinished particle draws up to gamma tokens from q, step by step."""
        tree, alive = self.draft_tree, self.unfinished
        # Unfinished particles have one length; the round's last token is the target's.
        gamma = min(gamma, self.request.room(len(alive[0].tokens)) - 1)
        drafts = [Draft() for _ in alive]
        if gamma < 1:
            return drafts
        branches = Branches(self.draft_model, tree)
        rows: dict[int, int] = {}
        for i, particle in enumerate(alive):
            parent = particle.draft_path[-1] if particle.draft_path else tree.tip
            drafts[i].head = branches.add(parent, particle.draft_unread)
            rows[i] = branches.score(drafts[i].head[-1])
        for step in range(gamma):
            scores = yield from ask(branches.extension())
            going = list(rows)
            contexts = [self._context(alive[i], drafts[i].tokens) for i in going]
            logits = scores.logits[[rows[i] for i in going]]
            q = distribution(logits, self.draft_params, contexts)
            tokens = draw_rows(q, self.request.randomness.uniforms(len(going)))
            log_q = q[range(len(going)), tokens].double().log().tolist()
            branches, rows = Branches(self.draft_model, tree), {}
            for i, token, chance in zip(going, tokens, log_q, strict=True):
                drafts[i].tokens.append(token)
                drafts[i].log_q.append(chance)
                self._proposed.append(token)
                if token in self.ends or step + 1 == gamma:
                    continue
                parent = drafts[i].nodes[-1] if drafts[i].nodes else drafts[i].head[-1]
                drafts[i].nodes += branches.add(parent, (token,))
                rows[i] = branches.score(drafts[i].nodes[-1])
            if not rows:
                break
        return drafts

    def weigh(self, drafts: Sequence[Draft], bar: float) -> Steps[None]:
        """2. One target pass scores all drafts; weights grow by p / q; a bonus token each.

        Args:
            bar: keep the longest beginning of the block at whose end the effective sample size
                is still at or above this, one token at least; 0: the whole block.
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
        p = distribution(
            scores.logits, self.request.params, self._row_contexts(alive, drafts, rows)
        )

        places = [i for i, particle in enumerate(self.members) if not particle.finished]
        gains = self._gains(places, drafts, rows, p)
        kept = self._kept(gains, bar)
        self.log_weights = self.log_weights + gains[:, :kept].sum(1)
        for place, draft, path, mine in zip(places, drafts, paths, rows, strict=True):
            tokens = draft.tokens[:kept]
            bonus = None
            if not tokens or tokens[-1] not in self.ends:
                bonus = self._bonus(place, p[mine[len(tokens)]])
            judged = self._judged(
                scores.logits, mine, [*tokens, *([] if bonus is None else [bonus])]
            )
            self._grow(self.members[place], draft, tokens, bonus, path, judged)
        self._notes["rounds"] += 1
        self._sizes.append(self.effective_size)

    def resample(self, scheme: Callable[[Floats, Randomness], Counts]) -> None:
        """3. Copies of heavy particles replace light ones; all weights are equal again."""
        counts = scheme(normalised(self.log_weights), self.request.randomness)
        self.members = [replace(self.members[i]) for i in ancestors(counts)]
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
        return "".join(map(reader.push, particle.tokens)) + reader.flush()

    def _gains(
        self,
        places: Sequence[int],
        drafts: Sequence[Draft],
        rows: Sequence[Sequence[int]],
        p: torch.Tensor,
    ) -> Floats:
        """Log p^alpha / q of every drafted token, ``[N, K]``; 0 where there is none."""
        gains = np.zeros((len(self.members), max(len(draft.tokens) for draft in drafts)))
        at = [
            (place, j, mine[j], token, log_q)
            for place, draft, mine in zip(places, drafts, rows, strict=True)
            for j, (token, log_q) in enumerate(zip(draft.tokens, draft.log_q, strict=True))
        ]
        if at:
            log_p = p[[row for _, _, row, _, _ in at], [token for *_, token, _ in at]]
            for (place, j, _, _, log_q), value in zip(
                at, log_p.double().log().tolist(), strict=True
            ):
                gains[place, j] = self.power * value - log_q
        return gains

    def _kept(self, gains: Floats, bar: float) -> int:
        longest = int(gains.shape[1])
        if not bar or longest < 2:
            return longest
        running = self.log_weights[:, None] + gains.cumsum(1)
        fit = [j + 1 for j in range(longest) if effective_size(running[:, j]) >= bar]
        return max(fit, default=1)

    def _bonus(self, place: int, p: torch.Tensor) -> int:
        """The target's own token after the block, weight 1 (alpha: the mass of p^alpha)."""
        if self.power != 1.0:
            p = p.double() ** self.power
            self.log_weights[place] += float(p.sum().log())
            p = p / p.sum()
        return draw(p, self.request.randomness.uniform())

    def _grow(
        self,
        particle: Particle,
        draft: Draft,
        tokens: list[int],
        bonus: int | None,
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
        if bonus is not None:
            particle.tokens += (bonus,)
            particle.who += ("bonus",)
            particle.target_unread = (bonus,)
            particle.draft_unread = (*unread, bonus)
        particle.judged += judged
        ended = particle.tokens[-1] in self.ends
        particle.finished = ended or self.request.room(len(particle.tokens)) <= 0

    def _judged(
        self, logits: torch.Tensor, rows: Sequence[int], tokens: Sequence[int]
    ) -> tuple[Judged, ...]:
        return judge(logits, tokens, self.request.params.logprobs, rows[: len(tokens)])

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
