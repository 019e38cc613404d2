"""Who races: our methods, and peers on the same weights, threads and prompts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from antiphon.api import encode, make_engine
from antiphon.errors import UserError
from antiphon.methods import Autoregressive, Method, Speculative
from antiphon.models import source
from antiphon.models.pair import DTYPES, SELF, ModelPair
from antiphon.params import SamplingParams

PEERS = ("transformers", "transformers-assisted")


@dataclass(frozen=True, slots=True)
class Lap:
    """One contestant's run over some prompts, all tokens counted by id.

    Attributes:
        token_ids: per prompt, end token included.
        seconds: wall time, prompts' prefill included.
        decode_seconds, decode_tokens: after the first tokens, which come with the prefill.
    """

    token_ids: tuple[tuple[int, ...], ...]
    seconds: float
    decode_seconds: float = 0.0
    decode_tokens: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.token_ids))


class Contestant(Protocol):
    """Answers prompts; `batch` of them at a time."""

    name: str
    batch: int

    def run(self, prompts: Sequence[str], params: SamplingParams) -> Lap: ...


class Ours:
    """One of antiphon's methods."""

    def __init__(self, name: str, pair: ModelPair, method: Method, batch: int, costs: bool) -> None:
        self.name, self.batch, self.method, self.pair = name, batch, method, pair
        self.engine = make_engine(pair, batch=batch, costs=costs)

    def run(self, prompts: Sequence[str], params: SamplingParams) -> Lap:
        ids = [encode(self.pair, prompt) for prompt in prompts]
        began = time.perf_counter()
        results = self.engine.generate(ids, [params] * len(ids), self.method)
        seconds = time.perf_counter() - began
        flat = [result for group in results for result in group]
        error = next((result.error for result in flat if result.error), None)
        if error:
            raise RuntimeError(f"{self.name}: {error}")
        # All prompts of a lap are read together: from the last first token on, only decoding.
        reading = max(result.statistics.prefill_seconds for result in flat)
        return Lap(
            token_ids=tuple(result.token_ids for result in flat),
            seconds=seconds,
            decode_seconds=seconds - reading,
            decode_tokens=sum(len(r.token_ids) - len(r.rounds[0].committed) for r in flat),
        )


class Transformers:
    """transformers' own `generate`, plain or assisted, on stock modules."""

    batch = 1

    def __init__(self, name: str, pair: ModelPair, target: Any, draft: Any, gamma: int) -> None:
        self.name, self.pair, self.target, self.draft = name, pair, target, draft
        self.gamma = gamma

    def run(self, prompts: Sequence[str], params: SamplingParams) -> Lap:
        outputs = []
        decode_seconds, decode_tokens = 0.0, 0
        began = time.perf_counter()
        for prompt in prompts:
            watch = _FirstToken()
            ids = torch.tensor([encode(self.pair, prompt)], device=self.target.device)
            torch.manual_seed(params.seed or 0)
            sampling: dict[str, Any] = {"do_sample": False}
            if not params.greedy:
                sampling = {"do_sample": True, "temperature": params.temperature, "top_k": 0}
            if self.draft is not None:
                self.draft.generation_config.num_assistant_tokens = self.gamma
                self.draft.generation_config.num_assistant_tokens_schedule = "constant"
                self.draft.generation_config.assistant_confidence_threshold = 0.0
                sampling["assistant_model"] = self.draft
            with torch.no_grad():
                out = self.target.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=params.max_tokens,
                    eos_token_id=sorted(self.pair.eos_token_ids),
                    pad_token_id=min(self.pair.eos_token_ids),
                    repetition_penalty=1.0,
                    streamer=watch,
                    **sampling,
                )
            outputs.append(tuple(out[0, ids.shape[1] :].tolist()))
            decode_seconds += time.perf_counter() - watch.at
            decode_tokens += len(outputs[-1]) - watch.tokens
        return Lap(tuple(outputs), time.perf_counter() - began, decode_seconds, decode_tokens)


class _FirstToken:
    """A transformers streamer that only notes when the first new tokens came, and how many."""

    def __init__(self) -> None:
        self.calls, self.at, self.tokens = 0, 0.0, 0

    def put(self, value: torch.Tensor) -> None:
        self.calls += 1
        if self.calls == 2:  # The first call brings the prompt.
            self.at, self.tokens = time.perf_counter(), value.numel()

    def end(self) -> None:
        """The text is complete."""


def contestants(
    pair: ModelPair,
    methods: Sequence[str],
    peers: Sequence[str],
    peer_dtype: str,
    gamma: int | Literal["auto"],
    batch: int,
    sources: tuple[str | None, str | None],
) -> list[Contestant]:
    """Build the field; raises UserError for a name that is not known or a missing draft."""
    configs: dict[str, Method] = {
        "autoregressive": Autoregressive(),
        "speculative": Speculative(gamma=gamma),
        "ngram": Speculative(gamma=gamma, drafter="ngram"),
        "multi-draft": Speculative(gamma=gamma, chains=3),
    }
    unknown = [name for name in methods if name not in configs]
    unknown += [name for name in peers if name not in PEERS]
    if unknown:
        raise UserError(
            f"{unknown[0]!r} cannot race: methods are {', '.join(configs)}; "
            f"peers are {', '.join(PEERS)}"
        )
    if not methods and not peers:
        raise UserError("nobody races: name --methods or --peers")
    if peers and batch > 1:
        raise UserError("peers answer one request at a time: use --batch 1")
    if peer_dtype not in DTYPES:
        raise UserError(f"--peer-dtype is {peer_dtype!r}: choose {', '.join(DTYPES)}")
    field: list[Contestant] = []
    for name in methods:
        racer = Ours(name, pair, configs[name], batch, costs=gamma == "auto")
        racer.method.check(racer.engine.models, SamplingParams())
        field.append(racer)
    if peers:
        field += _peers(pair, peers, peer_dtype, 4 if gamma == "auto" else gamma, sources)
    return field


def _peers(
    pair: ModelPair,
    names: Sequence[str],
    dtype: str,
    gamma: int,
    sources: tuple[str | None, str | None],
) -> list[Contestant]:
    target, draft = sources
    if target is None:
        from antiphon.lab import pair_path

        target = str(pair_path("target"))
        draft = draft or str(pair_path("draft"))
    device = pair.target.device
    stock = source.load(source.find(target), DTYPES[dtype], device)
    field: list[Contestant] = []
    for name in names:
        assistant = None
        if name == "transformers-assisted":
            if draft in (None, SELF, "ngram"):
                raise UserError("transformers-assisted needs a draft model: give --draft PATH")
            assistant = source.load(source.find(str(draft)), DTYPES[dtype], device)
        field.append(Transformers(name, pair, stock, assistant, gamma))
    return field
