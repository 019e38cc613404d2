"""What each method would do on given hardware: predicted speeds from pass costs and acceptance.

Costs are measured (this machine), or follow from published peaks by the roofline: a pass over
T tokens takes as long as reading the weights, or as long as its arithmetic, whichever is longer.
Speculation's gain is Leviathan et al. 2023, section 3.3, with such costs; SMC-SD's is
(gamma + 1) / (c gamma + 1) where rows are free (arXiv 2604.15672, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from antiphon.costs import PairCosts, PassCosts
from antiphon.drafting.length import LONGEST, expected_tokens
from antiphon.drafting.sizes import population_speed
from antiphon.errors import UserError

ROWS = tuple(2**i for i in range(15))
PARTICLES = (4, 8, 16)
BLOCKS = (4, 8, 16)


@dataclass(frozen=True, slots=True)
class Hardware:
    """Published peaks of one accelerator.

    Attributes:
        bandwidth: bytes per second from its memory.
        flops: dense bfloat16 operations per second.
    """

    name: str
    bandwidth: float
    flops: float

    @property
    def ridge(self) -> float:
        """Rows beyond which a bfloat16 pass is bound by arithmetic: 2 T / 2 = flops / bandwidth."""
        return self.flops / self.bandwidth

    def costs(self, weights: float, parameters: float) -> PassCosts:
        """Pass costs of a model of so many bytes and multiplied parameters."""
        reading = weights / self.bandwidth
        return PassCosts({rows: max(reading, 2 * parameters * rows / self.flops) for rows in ROWS})


HARDWARE: Mapping[str, Hardware] = {
    hardware.name: hardware
    for hardware in (
        Hardware("a100", 2.039e12, 312e12),
        Hardware("h100", 3.35e12, 989e12),
        Hardware("h200", 4.8e12, 989e12),
        Hardware("b200", 8.0e12, 2250e12),
    )
}
"""SXM versions with 80, 80, 141 and 180 GB, from the makers' data sheets."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """One setting.

    Attributes:
        method: its text form.
        tokens_per_second: of all requests together.
        speed_up: over the target alone at the same batch.
        rows: tokens in a target pass.
    """

    method: str
    tokens_per_second: float
    speed_up: float
    rows: int


def forecasts(costs: PairCosts, acceptance: float, batch: int) -> list[Forecast]:
    """Every setting, the fastest first; plain decoding is among them.

    Args:
        costs: of both models; without a draft's there is plain decoding alone.
        acceptance: chance that a draft token passes the exact rule, 0 to 1.
        batch: requests at once.

    Raises:
        UserError: for an acceptance or a batch that cannot be.
    """
    if not 0 <= acceptance <= 1:
        raise UserError(f"--acceptance is {acceptance:g}: give a share, 0 to 1")
    if batch < 1:
        raise UserError(f"--batch is {batch}: give a whole number >= 1")
    plain = batch / costs.target.seconds(batch)
    found = [
        Forecast(method, speed, speed / plain, rows)
        for method, speed, rows in _settings(costs, acceptance, batch)
    ]
    return sorted(found, key=lambda forecast: -forecast.tokens_per_second)


def _settings(costs: PairCosts, acceptance: float, batch: int) -> Iterator[tuple[str, float, int]]:
    yield "autoregressive", batch / costs.target.seconds(batch), batch
    if costs.draft is None:
        return
    yield "draft-only", batch / costs.draft.seconds(batch), 0
    for gamma in range(1, LONGEST + 1):
        rows = batch * (gamma + 1)
        seconds = gamma * costs.draft.seconds(batch) + costs.target.seconds(rows)
        tokens = batch * expected_tokens(acceptance, gamma)
        yield f"speculative:gamma={gamma}", tokens / seconds, rows
    for n in PARTICLES:
        for gamma in BLOCKS:
            # As many requests are one population that is so much larger.
            speed = batch * population_speed(costs, batch * n, gamma)
            yield f"smc:particles={n},gamma={gamma}", speed, batch * n * (gamma + 1)


@dataclass(frozen=True, slots=True)
class Counts:
    """What a recorded method did, in numbers that do not depend on the hardware.

    Attributes:
        target_passes, draft_passes: of all requests.
        target_rows: mean tokens of one request in a target pass that decodes.
        prompt_tokens: read by each model that took part.
        tokens: written.
        seconds: measured.
    """

    target_passes: int
    draft_passes: int
    target_rows: float
    prompt_tokens: int
    tokens: int
    seconds: float


def replay(counts: Counts, costs: PairCosts, batch: int) -> float:
    """Seconds that a recorded run would take with these costs, at `batch` requests at once.

    Every pass is taken to be full, so it is a lower bound for runs whose batch ran empty.
    """
    seconds = 0.0
    for model, passes, rows in (
        (costs.target, counts.target_passes, counts.target_rows),
        (costs.draft, counts.draft_passes, 1.0),
    ):
        if model is None or not passes:
            continue
        seconds += passes / batch * model.seconds(round(batch * rows))
        # A prompt is read in long passes: what a row costs there is the curve's last slope.
        long, longer = sorted(model.by_rows)[-2:]
        slope = (model.by_rows[longer] - model.by_rows[long]) / (longer - long)
        seconds += counts.prompt_tokens * slope
    return seconds


def shown(found: Sequence[Forecast]) -> list[Forecast]:
    """The forecasts worth a line: plain, draft alone, and the best of each other method."""
    best: dict[str, Forecast] = {}
    for forecast in found:
        best.setdefault(forecast.method.partition(":")[0], forecast)
    return sorted(best.values(), key=lambda forecast: -forecast.tokens_per_second)
