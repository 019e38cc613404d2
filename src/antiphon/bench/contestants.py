"""Who races: our methods, and peers on the same weights, threads and prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.metadata import version
from typing import Any, Literal

import torch

from antiphon.api import encode, make_engine, needs_costs
from antiphon.bench.laps import Contestant, Lap
from antiphon.bench.peers import engines
from antiphon.bench.peers.engines import KINDS, PeerOptions
from antiphon.errors import UserError
from antiphon.methods import Autoregressive, Method, Speculative, spec
from antiphon.models import source
from antiphon.models.pair import DTYPES, SELF, ModelPair
from antiphon.params import SamplingParams

IN_PROCESS = ("transformers", "transformers-assisted")
PEERS = (*IN_PROCESS, *KINDS)


class Ours:
    """One of antiphon's methods."""

    peer = False
    about: Mapping[str, Any] = {}

    def __init__(self, name: str, pair: ModelPair, method: Method, batch: int) -> None:
        self.name, self.batch, self.method, self.pair = name, batch, method, pair
        self.engine = make_engine(pair, batch=batch, costs=needs_costs(method))

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

    def close(self) -> None:
        """Nothing to end."""


class Transformers:
    """transformers' own `generate`, plain or assisted, on stock modules."""

    batch = 1
    peer = True

    def __init__(self, name: str, pair: ModelPair, target: Any, draft: Any, gamma: int) -> None:
        self.name, self.pair, self.target, self.draft = name, pair, target, draft
        self.gamma = gamma
        self.about: Mapping[str, Any] = {
            "transformers": version("transformers"),
            "dtype": str(target.dtype)[6:],
        }

    def run(self, prompts: Sequence[str], params: SamplingParams) -> Lap:
        outputs = []
        decode_seconds, decode_tokens = 0.0, 0
        encoded = [encode(self.pair, prompt) for prompt in prompts]
        began = time.perf_counter()
        for prompt_ids in encoded:
            watch = _FirstToken()
            ids = torch.tensor([prompt_ids], device=self.target.device)
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

    def close(self) -> None:
        """Nothing to end."""


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


@contextmanager
def contestants(
    pair: ModelPair,
    methods: Sequence[str],
    peers: Sequence[str],
    gamma: int | Literal["auto"],
    sources: tuple[str | None, str | None],
    options: PeerOptions,
    params: SamplingParams,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[list[Contestant]]:
    """The field, ready to run; what was started ends with the context.

    Args:
        methods: "autoregressive", "speculative", "ngram" or "multi-draft", with `gamma`; or any
            method in its text form, with its own knobs.
        sources: target and draft as the user gave them; peers load their own.
        options: how peers run, and the batch of all.
        params: of the race.
        say: receives what takes its time.

    Raises:
        UserError: for a name that is not known, a missing draft, a batch that one of them cannot
            take, or a peer that does not start.
    """
    configs: dict[str, Method] = {
        "autoregressive": Autoregressive(),
        "speculative": Speculative(gamma=gamma),
        "ngram": Speculative(gamma=gamma, drafter="ngram"),
        "multi-draft": Speculative(gamma=gamma, chains=3),
    }
    unknown = next((name for name in peers if name not in PEERS), None)
    if unknown is not None:
        raise UserError(f"{unknown!r} cannot race: peers are {', '.join(PEERS)}")
    if not methods and not peers:
        raise UserError("nobody races: name --methods or --peers")
    target, draft = sources
    if target is None:
        target, draft = _bundled("target"), draft or _bundled("draft")
    _check_peers(pair, peers, options, (target, draft))
    field: list[Contestant] = []
    with ExitStack() as open_ones:
        for name in methods:
            method = configs[name] if name in configs else spec.parse(name)
            racer = Ours(name, pair, method, options.batch)
            racer.method.check(racer.engine.models, params)
            field.append(racer)
        for peer in _peers(pair, peers, options, (target, draft), say):
            field.append(open_ones.enter_context(closing(peer)))
        yield field


def _bundled(role: str) -> str:
    from antiphon.lab import pair_path

    return str(pair_path(role))


def _check_peers(
    pair: ModelPair,
    names: Sequence[str],
    options: PeerOptions,
    sources: tuple[str, str | None],
) -> None:
    """Raise UserError for what no peer would do, before any is started."""
    if options.dtype not in DTYPES:
        raise UserError(f"--peer-dtype is {options.dtype!r}: choose {', '.join(DTYPES)}")
    for name in names:
        if options.batch > 1 and not (name in KINDS and KINDS[name].batches):
            raise UserError(f"{name} answers one request at a time: use --batch 1, or leave it out")
        if name in KINDS and pair.target.device.type != "cpu":
            raise UserError(f"{name} is raced on the CPU alone: use --device cpu")
        drafts = name == "transformers-assisted" or (name in KINDS and KINDS[name].drafts)
        if drafts and sources[1] in (None, SELF, "ngram"):
            raise UserError(f"{name} needs a draft model: give --draft PATH")
        if name in KINDS:
            engines.check(name, sources[0])


def _peers(
    pair: ModelPair,
    names: Sequence[str],
    options: PeerOptions,
    sources: tuple[str, str | None],
    say: Callable[[str], None],
) -> Iterator[Contestant]:
    target, draft = sources
    dtype, device = DTYPES[options.dtype], pair.target.device
    stock: Any = None
    for name in names:
        if name in KINDS:
            eos = sorted(pair.eos_token_ids)
            yield engines.start(
                name, target, draft, options, lambda text: encode(pair, text), eos, say
            )
            continue
        stock = stock if stock is not None else source.load(source.find(target), dtype, device)
        assistant = None
        if name == "transformers-assisted":
            assistant = source.load(source.find(str(draft)), dtype, device)
        yield Transformers(name, pair, stock, assistant, options.gamma)
