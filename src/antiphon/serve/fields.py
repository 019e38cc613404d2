"""What a request may say: OpenAI's fields and ours, each honoured or refused by its name.

Fields are OpenAI's (API reference, completions and chat completions), vLLM's where those lack
one (`top_k`, `min_p`, ...), `method` and the knobs of methods, and `antiphon`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from antiphon.errors import UserError
from antiphon.params import Language, SamplingParams

Number = StrictInt | StrictFloat
Ids = list[StrictInt]

MOST_STOPS = 16
MOST_PROMPTS = 64


class FieldError(UserError):
    """A field that is refused; `param` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class StreamOptions(BaseModel):
    """How a stream is told."""

    model_config = ConfigDict(extra="forbid")

    include_usage: StrictBool = False


class JsonSchema(BaseModel):
    """OpenAI's wrapper of a schema; `strict` is always meant."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    name: StrictStr = "answer"
    description: StrictStr | None = None
    content: Annotated[dict[str, Any], Field(alias="schema")]
    strict: StrictBool | None = None


class ResponseFormat(BaseModel):
    """Plain text, any JSON object, or JSON of a schema."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text", "json_object", "json_schema"] = "text"
    json_schema: JsonSchema | None = None

    @property
    def schema_or_none(self) -> dict[str, Any] | None:
        """The schema; None: any object."""
        if self.type == "json_schema":
            if self.json_schema is None:
                raise FieldError("response_format", "response_format lacks json_schema: give it")
            return self.json_schema.content
        return None


class Common(BaseModel):
    """The fields that both endpoints share. Extra ones may be knobs of the method."""

    model_config = ConfigDict(extra="allow")

    model: StrictStr | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    n: StrictInt | None = None
    max_tokens: StrictInt | None = None
    stop: StrictStr | list[StrictStr] | None = None
    seed: StrictInt | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: dict[StrictStr, Number] | None = None
    user: StrictStr | None = None
    response_format: ResponseFormat | None = None

    # vLLM's names.
    top_k: StrictInt | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    ignore_eos: StrictBool | None = None
    stop_token_ids: Ids | None = None

    method: StrictStr | None = None
    antiphon: StrictBool | None = None

    def knobs(self) -> dict[str, Any]:
        """The extra fields that were given."""
        return dict(self.model_extra or {})

    def sampling(
        self, max_tokens: int, logprobs: int | None, grammar: Language | None
    ) -> SamplingParams:
        """Raises UserError for a value that sampling refuses, FieldError for a field that is."""
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "stream_options needs stream: true")
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(stops) > MOST_STOPS:
            raise FieldError("stop", f"stop has {len(stops)} strings: give at most {MOST_STOPS}")
        given: dict[str, Any] = {
            "temperature": 1.0 if self.temperature is None else self.temperature,
            "top_p": self.top_p,
            "n": self.n,
            "max_tokens": max_tokens,
            "stop": tuple(stops),
            "seed": self.seed,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
            "logit_bias": None if self.logit_bias is None else _bias(self.logit_bias),
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "ignore_eos": self.ignore_eos,
            "stop_token_ids": None if self.stop_token_ids is None else tuple(self.stop_token_ids),
            "logprobs": logprobs,
            "grammar": grammar,
        }
        return SamplingParams(**{name: value for name, value in given.items() if value is not None})


class CompletionRequest(Common):
    """``POST /v1/completions``."""

    prompt: StrictStr | list[StrictStr] | Ids | list[Ids]
    logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    echo: StrictBool | None = None
    suffix: StrictStr | None = None
    best_of: StrictInt | None = None

    def prompts(self) -> list[str] | list[list[int]]:
        """One or more prompts, each a text or token ids."""
        prompt = self.prompt
        if isinstance(prompt, str):
            return [prompt]
        if not prompt:
            raise FieldError("prompt", "prompt is empty: give a text")
        if isinstance(prompt[0], int):
            return [prompt]
        if len(prompt) > MOST_PROMPTS:
            raise FieldError(
                "prompt", f"prompt has {len(prompt)} texts: give at most {MOST_PROMPTS} at once"
            )
        return prompt

    def refuse(self) -> None:
        """Raise FieldError for what completions of other servers can do."""
        if self.echo:
            raise FieldError("echo", "echo is not supported: drop it")
        if self.suffix:
            raise FieldError("suffix", "suffix is not supported: drop it")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise FieldError("best_of", "best_of is not supported: drop it, or make it equal to n")


class Part(BaseModel):
    """A part of a message; text alone is understood."""

    model_config = ConfigDict(extra="allow")

    type: StrictStr
    text: StrictStr | None = None


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant"]
    content: StrictStr | list[Part]
    name: StrictStr | None = None

    def turn(self) -> dict[str, str]:
        """For a chat template. Raises FieldError for anything that is not text."""
        unknown = next(iter(self.model_extra or {}), None)
        if unknown is not None:
            raise FieldError("messages", f"messages with {unknown!r} are not supported: send text")
        role = "system" if self.role == "developer" else self.role
        if isinstance(self.content, str):
            return {"role": role, "content": self.content}
        other = next((part.type for part in self.content if part.type != "text"), None)
        if other is not None:
            raise FieldError("messages", f"content of type {other!r} is not supported: send text")
        return {"role": role, "content": "".join(part.text or "" for part in self.content)}


class ChatRequest(Common):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: StrictInt | None = None
    logprobs: StrictBool | None = None
    top_logprobs: Annotated[StrictInt, Field(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None

    def refuse(self) -> None:
        """Raise FieldError for what chats of other servers can do."""
        for name in ("tools", "functions"):
            if getattr(self, name):
                raise FieldError(name, f"{name} are not supported: describe them in the prompt")
        if self.tool_choice not in (None, "none"):
            raise FieldError("tool_choice", "tool_choice is not supported: drop it")
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs needs logprobs: true")

    @property
    def alternatives(self) -> int | None:
        """How many alternatives a token is told with; None: not even its own log-probability."""
        return (self.top_logprobs or 0) if self.logprobs else None


class TokenizeRequest(BaseModel):
    """``POST /tokenize``: a text, or a conversation through the chat template."""

    model_config = ConfigDict(extra="forbid")

    prompt: StrictStr | None = None
    messages: list[Message] | None = None


def _bias(bias: dict[str, int | float]) -> dict[int, float]:
    wrong = next((token for token in bias if not token.isdecimal()), None)
    if wrong is not None:
        raise FieldError("logit_bias", f"logit_bias has key {wrong!r}: keys are token ids")
    return {int(token): float(value) for token, value in bias.items()}
