"""Token ids to text, one token at a time.

This file knows that a token is not a piece of text: a character may need several tokens, and
a token's leading space may depend on what stands before it. So tokens are decoded behind a
short window of earlier ones, and what could still change is held back.

``tokenizers.decoders.DecodeStream`` does the same for the plain case. It cannot be flushed,
holds back whole tokens where only their last bytes are unfinished, and repeats the prompt
where that ends inside a character; hence this one, over the tokenizer's ``decode``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

from antiphon.errors import UserError

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_WINDOW = 8  # Prompt ids to decode behind: more than the four bytes of a character.


class Detokenizes(Protocol):
    """What a Stopper needs of one request's detokenizer. Toy models bring their own."""

    def push(self, token_id: int) -> str:
        """The text that became certain with this token: '' inside a character."""
        ...

    def flush(self) -> str:
        """What is left at the end: '' or replacements for a character never finished."""
        ...


class Pieces:
    """A Detokenizes for vocabularies in which every token is whole text of its own."""

    def __init__(self, pieces: Mapping[int, str] | Sequence[str]) -> None:
        self._pieces = pieces

    def push(self, token_id: int) -> str:
        return self._pieces[token_id]

    def flush(self) -> str:
        return ""


class Detokenizer:
    """The text of one request's output as it grows, without special tokens.

    All pushes and the flush together are the tokenizer's decode of prompt and output, less
    its decode of the prompt. Where the prompt ends inside a character the output begins with
    that whole character. One more exception: a byte-fallback tokenizer decodes a run of byte
    tokens all or nothing, so one stray byte spoils characters before it; here a character
    once shown stays.

    tokenizer: a transformers fast tokenizer or a ``tokenizers.Tokenizer``; others raise
        UserError. Decoded as the tokenizer's own decoder does, with none of the clean-up of
        spaces that transformers may add.
    prompt: the ids before the output.
    """

    def __init__(self, tokenizer: Any, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
        if not isinstance(self._tokenizer, Tokenizer):
            raise UserError(
                f"a {type(tokenizer).__name__} cannot decode incrementally: "
                "load the fast tokenizer (one with a tokenizer.json)"
            )
        tail = self._tail(prompt)
        self._shown = self._decode(tail)
        whole = len(tail)
        while whole and self._decode(tail[:whole]).endswith(_REPLACEMENT):
            whole -= 1
        self._context, self._pending = tail[:whole], tail[whole:]

    def push(self, token_id: int) -> str:
        self._pending.append(token_id)
        text, known = self._window()
        certain = text.rstrip(_REPLACEMENT)
        new = certain[known:]
        self._shown = text[: max(known, len(certain))]
        if new and certain == text:
            self._context, self._pending = self._pending, []
            self._shown = self._decode(self._context)
        return new

    def flush(self) -> str:
        text, known = self._window()
        self._shown = text
        return text[known:]

    def _window(self) -> tuple[str, int]:
        """The text of context and pending tokens, and how much of it is known already."""
        text = self._decode(self._context + self._pending)
        known = self._shown
        while known.endswith(_REPLACEMENT) and not text.startswith(known):
            known = known[:-1]
        if text.startswith(known):
            return text, len(known)
        # A stray byte undid the run of byte tokens it ended: decode what follows by itself.
        self._context = []
        return self._decode(self._pending), 0

    def _tail(self, prompt: Sequence[int]) -> list[int]:
        """The last ids of the prompt that show text, so that a space after them is kept."""
        width = _WINDOW
        while width < len(prompt):
            tail = list(prompt[-width:])
            if self._decode(tail).strip(_REPLACEMENT):
                return tail
            width *= 2
        return list(prompt)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
