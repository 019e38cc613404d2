"""SMC-SD: a population of weighted texts instead of accepted and refused drafts.

Emara et al., "Faster LLM Inference via Sequential Monte Carlo" (arXiv 2604.15672, Algorithm 1).
Nothing is rejected: each particle grows by gamma draft tokens and one of the target's in every
round, its weight by p / q, and particles that fall behind are replaced by copies of others.
Ours, between that and exact speculative decoding: blocks cut by the effective sample size,
rejection control, exact rounds in between, and a population that grows and shrinks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from antiphon.drafting.sizes import best_sizes
from antiphon.errors import UserError
from antiphon.methods.base import Models
from antiphon.methods.particles import SCHEMES
from antiphon.methods.population import Population
from antiphon.params import SamplingParams
from antiphon.request import Request, Steps

OUTPUTS = ("sample", "max", "vote")


@dataclass(frozen=True, slots=True)
class SMC:
    """Configuration.

    Attributes:
        particles: N; "auto": as many as the measured pass costs let run nearly for free.
        gamma: draft tokens a particle and round; "auto": the shortest block that is nearly as
            fast as the fastest. See `drafting.sizes`.
        threshold: resample where the effective sample size falls below this share of N; 0: never.
        scheme: resampler, see `methods.particles`.
        draft_temperature: of q; None: the request's.
        power: alpha: the texts' target distribution is p^alpha.
        guided: commit only the longest beginning of a block at whose end the effective sample
            size still reaches the threshold (one token at least), and draw the target's token
            there.
        control: c of rejection control: draft token x stands with chance min(1, p / (c q)), is
            else drawn anew, and no factor of a weight is below c. 0: none; 1: every particle is
            decoded by exact speculation.
        exact: every how many rounds one is exact (control 1); "need": the round after each
            resampling; 0: none.
        enough: the population shrinks while its effective size is above this and grows up to
            `particles` while it is below; 0: it keeps its size.
        output: "sample" returns a particle by its weight, "max" the heaviest one, "vote" the
            heaviest of those whose common answer (the last number of a text) weighs most.
        potential: psi, a function of a text so far (without the prompt) to a number in nats, or
            ``-inf`` for a text that must not be: whole texts are weighted towards
            p(text) exp(psi(text)). It is asked at the end of every round. Python only.
    """

    GUARANTEE: ClassVar[str] = "the target's distribution as N grows; N = 1 is the bare draft"
    SOURCE: ClassVar[str] = "arXiv 2604.15672"

    particles: int | Literal["auto"] = 8
    gamma: int | Literal["auto"] = 8
    threshold: float = 0.5
    scheme: str = "systematic"
    draft_temperature: float | None = None
    power: float = 1.0
    guided: bool = False
    control: float = 0.0
    exact: int | Literal["need"] = 0
    enough: int = 0
    output: str = "sample"
    potential: Callable[[str], float] | None = None

    def __post_init__(self) -> None:
        for name in ("particles", "gamma"):
            value = getattr(self, name)
            if value != "auto" and (type(value) is not int or value < 1):
                raise UserError(f"{name} is {value!r}: give a whole number >= 1, or 'auto'")
        if not 0 <= self.threshold <= 1:
            raise UserError(f"threshold is {self.threshold!r}: give a share of N, 0 to 1")
        if self.scheme not in SCHEMES:
            raise UserError(f"scheme is {self.scheme!r}: choose {', '.join(SCHEMES)}")
        if self.draft_temperature is not None and not self.draft_temperature > 0:
            raise UserError(f"draft_temperature is {self.draft_temperature!r}: give it above 0")
        if self.draft_temperature is not None:
            SamplingParams(temperature=self.draft_temperature)  # Has bounds of its own.
        if not self.power > 0:
            raise UserError(f"power is {self.power!r}: give a number above 0")
        if not 0 <= self.control <= 1:
            raise UserError(f"control is {self.control!r}: give 0 (none) to 1 (exact)")
        if self.control and self.guided:
            raise UserError("control and guided both cut blocks: give one of them")
        if self.exact != "need" and (type(self.exact) is not int or self.exact < 0):
            raise UserError(f"exact is {self.exact!r}: give a number of rounds, 0, or 'need'")
        if self.enough < 0 or (self.particles != "auto" and self.enough > self.particles):
            raise UserError(f"enough is {self.enough!r}: give 0 to the number of particles")
        if self.enough and self.scheme == "killing":
            raise UserError("killing keeps the population's size: choose another scheme")
        if self.output not in OUTPUTS:
            raise UserError(f"output is {self.output!r}: choose {', '.join(OUTPUTS)}")

    def check(self, models: Models, params: SamplingParams) -> None:
        if models.draft is None:
            raise UserError("smc needs a draft model: give --draft PATH or --draft self")
        if params.greedy:
            raise UserError("smc draws samples: give a --temperature above 0")
        if "auto" in (self.particles, self.gamma) and models.costs is None:
            raise UserError("'auto' needs measured pass costs: make_engine(pair, costs=True)")

    def run(self, request: Request, models: Models) -> Steps[None]:
        assert models.draft is not None
        N, gamma = self.sizes(models)
        population = Population(
            request,
            models,
            particles=N,
            draft_temperature=self.draft_temperature,
            power=self.power,
        )
        told, rounds, fired = 0, 0, False
        while population.unfinished:
            control = 1.0 if self.is_exact(rounds, fired) else self.control
            size = len(population.members)
            # One particle is never resampled.
            bar = self.threshold * size if N > 1 else 0.0
            drafts = yield from population.draft(gamma, keep_q=control > 0)
            yield from population.weigh(drafts, bar if self.guided else 0.0, control)
            if self.potential is not None:
                population.weigh_texts(self.potential)
            wanted = self.wanted(population.effective_size, size, N)
            fired = population.effective_size < bar or wanted != size
            if fired:
                population.resample(SCHEMES[self.scheme], wanted)
            rounds += 1
            population.settle()
            # What all particles share will not change any more: it can be told. The end of the
            # text waits for the last word on the population.
            shared = population.shared()
            if shared > told and population.unfinished:
                yield population.commit(population.members[0], told, shared)
                told = shared
        chosen = population.choose(self.output)
        if told < len(chosen.tokens):
            yield population.commit(chosen, told, len(chosen.tokens))

    def is_exact(self, rounds: int, fired: bool) -> bool:
        """Whether the round after so many is exact; told before it drafts, so it biases nothing.

        Args:
            fired: whether the round before ended with a resampling.
        """
        if self.exact == "need":
            return fired
        return self.exact > 0 and rounds % self.exact == self.exact - 1

    def wanted(self, effective: float, size: int, most: int) -> int:
        """How many particles the next round should have: half as many, as many or twice as many.

        Args:
            effective: their effective size; `size` of them there are, `most` there may be.
        """
        if not self.enough:
            return size
        if effective >= 2 * self.enough:
            return max(size // 2, self.enough)
        return min(2 * size, most) if effective < self.enough else size

    def sizes(self, models: Models) -> tuple[int, int]:
        """N and gamma; what is "auto" by the measured pass costs."""
        if self.particles != "auto" and self.gamma != "auto":
            return self.particles, self.gamma
        assert models.costs is not None
        return best_sizes(
            models.costs,
            None if self.particles == "auto" else self.particles,
            None if self.gamma == "auto" else self.gamma,
        )
