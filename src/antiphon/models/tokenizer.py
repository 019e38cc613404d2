"""A transformers tokenizer, as far as a start needs it, without transformers.

Importing transformers and unpickling its tokenizer take longer than loading a small model. The
`tokenizers` library below it, and jinja2 for chat templates, do the work anyway; whatever else is
asked for is asked of the tokenizer itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from antiphon.cache import mark


@dataclass(frozen=True, slots=True)
class Facts:
    """What a start asks of a tokenizer beside its work.

    Attributes:
        plain: calling it on a text is what the backend's `encode` does, and nothing else.
        digest: of the backend; equal ones read and write the same tokens.
        size: tokens, with those added.
        special: texts of the special tokens by their names, for templates.
        added: ids of the added tokens by their texts.
    """

    plain: bool
    digest: str
    size: int
    chat_template: Any
    eos_token_id: int | None
    bos_token_id: int | None
    all_special_ids: list[int]
    special: dict[str, str]
    added: dict[str, int]


KNOWN = ("chat_template", "eos_token_id", "bos_token_id", "all_special_ids")
"""Attributes of a tokenizer that are its facts'."""


class KeptTokenizer:
    """Behaves as the transformers tokenizer that it stands for.

    Until that one is needed: from then on everything is asked of it, and whatever is set or
    added is its own.

    Args:
        facts: from `learn`.
        backend: gives the `tokenizers.Tokenizer`, when a text is first read or written.
        whole: gives the transformers tokenizer, when something is asked that is not known here.
    """

    def __init__(
        self, facts: Facts, backend: Callable[[], Tokenizer], whole: Callable[[], Any]
    ) -> None:
        # Not by `self.`: attributes that are set belong to the tokenizer itself.
        self.__dict__.update(_facts=facts, _backend=backend, _load=whole, _loaded=None)

    @property
    def whole(self) -> Any:
        """The transformers tokenizer."""
        return self._asked()

    @property
    def facts(self) -> Facts:
        return self._facts if self._loaded is None else learn(self._loaded)

    @property
    def backend_tokenizer(self) -> Tokenizer:
        backend: Tokenizer = (
            self._backend() if self._loaded is None else self._loaded.backend_tokenizer
        )
        return backend

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Never set: a copy that is being made has no attributes yet.
            raise AttributeError(name)
        if self._loaded is None and name in KNOWN:
            return getattr(self._facts, name)
        return getattr(self._asked(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._asked(), name, value)

    def _asked(self) -> Any:
        if self._loaded is None:
            self.__dict__["_loaded"] = self._load()
        return self._loaded

    def __len__(self) -> int:
        return self._facts.size if self._loaded is None else len(self._loaded)

    def get_added_vocab(self) -> dict[str, int]:
        return dict(self.facts.added)

    def get_vocab(self) -> dict[str, int]:
        return self.backend_tokenizer.get_vocab(with_added_tokens=True)

    def __call__(self, text: Any, *others: Any, **options: Any) -> Any:
        plain = isinstance(text, str) and not others and not set(options) - {"add_special_tokens"}
        if self._loaded is not None or not self._facts.plain or not plain:
            return self.whole(text, *others, **options)
        ids = self.backend_tokenizer.encode(text, **options).ids
        return Encoded(input_ids=ids, attention_mask=[1] * len(ids))

    def encode(self, text: Any, *others: Any, **options: Any) -> Any:
        if self._loaded is None and not others:
            return self(text, **options)["input_ids"]
        return self.whole.encode(text, *others, **options)

    def apply_chat_template(self, messages: Sequence[Any], **options: Any) -> Any:
        """As transformers does it; by ourselves for one conversation of plain texts, as text."""
        known, template = self._loaded is None and self._facts.plain, self.chat_template
        plain = options == {"tokenize": False, "add_generation_prompt": True}
        if known and plain and isinstance(template, str) and _are_texts(messages):
            try:
                return _compiled(template).render(
                    messages=[dict(message) for message in messages],
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    **self._facts.special,
                )
            except Exception:  # A template beyond what we give it, or one that refuses.
                pass
        return self.whole.apply_chat_template(messages, **options)


class Encoded(dict[str, list[int]]):
    """Token ids as transformers hands them out."""

    @property
    def input_ids(self) -> list[int]:
        return self["input_ids"]


def kept(tokenizer: Any) -> KeptTokenizer:
    """A transformers fast tokenizer that is at hand, in the form of one that was kept."""
    return KeptTokenizer(
        learn(tokenizer), lambda: unbounded(tokenizer.backend_tokenizer), lambda: tokenizer
    )


def learn(tokenizer: Any) -> Facts:
    """What is to be known of a transformers fast tokenizer."""
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    kind, base = type(tokenizer), PreTrainedTokenizerFast
    plain = (
        kind.__call__ is PreTrainedTokenizerBase.__call__
        and kind.encode is PreTrainedTokenizerBase.encode
        and kind._encode_plus is base._encode_plus
        and kind.apply_chat_template is PreTrainedTokenizerBase.apply_chat_template
        and kind.get_vocab is base.get_vocab
        and not getattr(tokenizer, "split_special_tokens", False)
        and "token_type_ids" not in tokenizer.model_input_names
    )
    return Facts(
        plain=plain,
        digest=mark(tokenizer.backend_tokenizer.to_str()),
        size=len(tokenizer),
        chat_template=tokenizer.chat_template,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        all_special_ids=list(tokenizer.all_special_ids),
        special={name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        added=dict(tokenizer.get_added_vocab()),
    )


def unbounded(backend: Tokenizer) -> Tokenizer:
    """The same, reading texts whole, as transformers has it unless it is told otherwise."""
    backend.no_truncation()
    backend.no_padding()
    return backend


def _are_texts(messages: Sequence[Any]) -> bool:
    """Whether every message is a role and a text: what no version of transformers treats."""
    return bool(messages) and all(
        isinstance(message, dict)
        and set(message) == {"role", "content"}
        and all(isinstance(value, str) for value in message.values())
        for message in messages
    )


@lru_cache(maxsize=8)
def _compiled(text: str) -> Any:
    """A template in the environment that chat templates are written for.

    A model's template is somebody else's code: it runs in jinja2's sandbox.
    """
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _json
    # No `dict` and the like: transformers has narrower ones, and what uses them.
    environment.globals = {
        "range": environment.globals["range"],
        "namespace": _namespace(),
        "raise_exception": _refuse,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    return environment.from_string(text)


def _namespace() -> Any:
    from jinja2.exceptions import SecurityError
    from jinja2.utils import Namespace

    class Plain(Namespace):
        """Takes no names that Python means something by."""

        def __init__(self, **values: Any) -> None:
            super().__init__()
            for name, value in values.items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise SecurityError(f"{name!r} is no name for a template's value")
            super().__setitem__(name, value)

    return Plain


def _json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> None:
    raise ValueError(message)
