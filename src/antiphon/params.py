"""What a request asks of sampling and stopping: its parameters, validated when they are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol

from antiphon.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

_COLDEST = 1e-5  # Below it float32 logits overflow or tie: vLLM too calls that greedy.
_REALS = {
    "temperature": (0.0, 1e4, "0 is greedy"),
    "top_p": (1e-6, 1.0, "1 turns it off"),
    "min_p": (0.0, 1.0, "0 turns it off"),
    "repetition_penalty": (1e-2, 1e2, "1 turns it off"),
    "presence_penalty": (-2.0, 2.0, "0 turns it off"),
    "frequency_penalty": (-2.0, 2.0, "0 turns it off"),
}
_INTEGERS = {
    "top_k": (0, "0 turns it off"),
    "max_tokens": (1, "a request writes at least one token"),
    "n": (1, "a request asks for at least one sample"),
}
_OPTIONAL = {"seed": "None takes a fresh one", "logprobs": "None reports none"}
_BIAS = 100.0


class TokenBias(Mapping[int, float]):
    """An immutable, hashable map from token id to what is added to its logit."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[int, float] | None = None) -> None:
        self._items = dict(items or {})

    def __getitem__(self, token: int) -> float:
        return self._items[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


class Language(Protocol):
    """What sampling asks of a grammar."""

    def allowed(self, output: tuple[int, ...], vocab_size: int) -> Tensor:
        """Which tokens may follow an output, bool ``[V]``; at least one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What a request asks of sampling and stopping; names and meanings are vLLM's.

    temperature: 0 is greedy (a one-hot distribution on the largest logit).
    top_k: keep the k most probable tokens; 0 is off.
    top_p: keep the smallest set of most probable tokens whose mass reaches top_p; 1 is off.
    min_p: keep tokens with at least min_p times the top probability; 0 is off.
    repetition_penalty: divides positive and multiplies negative logits of every token in
        prompt or output (CTRL, Keskar et al. 2019); 1 is off.
    presence_penalty, frequency_penalty: subtracted from the logits of output tokens, once and
        once per occurrence (OpenAI's formula); 0 is off.
    logit_bias: token id to what is added to its logit, from -100 to 100 (OpenAI).
    max_tokens: the most output tokens, the EOS included.
    stop: strings that end the text right before them; one string or a sequence of them.
    stop_token_ids: ids that end the text as EOS does.
    ignore_eos: EOS is an ordinary token.
    seed: the same seed gives the same random stream; None takes a fresh one.
    n: how many samples of the same prompt.
    logprobs: how many top alternatives to report per token; 0 reports the chosen token alone.
    grammar: the language that outputs keep to, such as `antiphon.grammar.Grammar`; None is any.

    Raises UserError, naming the field and the fix, for a value of the wrong type or range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=TokenBias)
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    grammar: Language | None = None

    def __post_init__(self) -> None:
        clean: dict[str, Any] = {
            name: _real(name, getattr(self, name), low, high, hint)
            for name, (low, high, hint) in _REALS.items()
        }
        for name, (least, hint) in _INTEGERS.items():
            clean[name] = _integer(name, getattr(self, name), least, hint)
        for name, hint in _OPTIONAL.items():
            if getattr(self, name) is not None:
                clean[name] = _integer(name, getattr(self, name), 0, hint)
        clean["logit_bias"] = _bias(self.logit_bias)
        clean["stop"] = _stop_strings(self.stop)
        clean["stop_token_ids"] = _stop_ids(self.stop_token_ids)
        if not isinstance(self.ignore_eos, bool):
            raise UserError(f"ignore_eos is of type {_kind(self.ignore_eos)}: use True or False")
        if 0.0 < clean["temperature"] < _COLDEST:
            raise UserError(
                f"temperature is {self.temperature!r}: use 0 (greedy) or at least {_COLDEST:g}"
            )
        for name, value in clean.items():
            object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether every distribution is one-hot."""
        return self.temperature == 0.0

    @property
    def opened(self) -> SamplingParams:
        """At temperature 1 where they are greedy, else as they are: how sure a model is."""
        return replace(self, temperature=1.0) if self.greedy else self

    @property
    def uses_history(self) -> bool:
        """Whether a penalty or a grammar makes a distribution depend on earlier tokens."""
        return (
            self.grammar is not None
            or self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def check(params: SamplingParams, vocab_size: int, history: Iterable[int] = ()) -> None:
    """Refuse token ids that a vocabulary of ``vocab_size`` tokens does not have.

    ``history`` is the prompt. Raises UserError.
    """
    for name, ids in (
        ("logit_bias", params.logit_bias),
        ("stop_token_ids", params.stop_token_ids),
        ("the prompt", history),
    ):
        wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
        if wrong is not None:
            raise UserError(
                f"{name} has token id {wrong}: this vocabulary ends at {vocab_size - 1}"
            )
    if params.logprobs is not None and params.logprobs > vocab_size:
        raise UserError(f"logprobs is {params.logprobs}: this vocabulary has {vocab_size} tokens")


def _kind(value: object) -> str:
    return type(value).__name__


def _real(name: str, value: object, low: float, high: float, hint: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UserError(f"{name} is of type {_kind(value)}: use a number")
    number = float(value)
    if not low <= number <= high:  # NaN is refused here too: it compares false.
        raise UserError(f"{name} is {number!r}: use {low:g} to {high:g} ({hint})")
    return number


def _integer(name: str, value: object, least: int, hint: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{name} is of type {_kind(value)}: use a whole number")
    if value < least:
        raise UserError(f"{name} is {int(value)}: use {least} or more ({hint})")
    return int(value)


def _bias(bias: object) -> TokenBias:
    if not isinstance(bias, Mapping):
        raise UserError(f"logit_bias is of type {_kind(bias)}: use a map from token id to number")
    hint = "it is added to the logit"
    return TokenBias(
        {
            _integer("a token id in logit_bias", token, 0, "ids count from 0"): _real(
                f"logit_bias of token {token}", value, -_BIAS, _BIAS, hint
            )
            for token, value in bias.items()
        }
    )


def _stop_strings(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str):
        stop = (stop,)
    if not isinstance(stop, Sequence) or isinstance(stop, bytes | bytearray):
        raise UserError(f"stop is of type {_kind(stop)}: use a string or a list of strings")
    for text in stop:
        if not isinstance(text, str):
            raise UserError(
                f"stop has an entry of type {_kind(text)}: use strings, and stop_token_ids for ids"
            )
        if not text:
            raise UserError("stop has an empty string: leave it out")
    return tuple(stop)


def _stop_ids(ids: object) -> tuple[int, ...]:
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes | bytearray):
        raise UserError(f"stop_token_ids is of type {_kind(ids)}: use a list of token ids")
    return tuple(_integer("an id in stop_token_ids", token, 0, "ids count from 0") for token in ids)
