"""Prompt lookup: the draft is what followed the same few tokens earlier in the text.

Saxena 2023 (prompt lookup decoding); no model, no passes.
"""

from __future__ import annotations

from antiphon.params import Language
from antiphon.request import Steps
from antiphon.rules.base import Block
from antiphon.sampling import Context


class NGram:
    """Looks the last tokens up in the prompt and output so far, longest match first.

    Args:
        longest, shortest: lengths of the suffix to look up.
    """

    def __init__(
        self,
        longest: int = 4,
        shortest: int = 2,
        grammar: Language | None = None,
        vocabulary: int = 0,
    ) -> None:
        self.grammar, self.vocabulary = grammar, vocabulary
        self.sizes = range(longest, shortest - 1, -1)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def propose(self, context: Context, gamma: int) -> Steps[Block]:
        yield from ()
        found = self.lookup(context.since(len(self._text)), gamma)
        if self.grammar is not None:
            # What is copied knows no grammar, and lossy rules may keep it.
            for place, token in enumerate(found):
                allowed = self.grammar.allowed(context.output + found[:place], self.vocabulary)
                if not allowed[token]:
                    found = found[:place]
                    break
        return Block.chain(found)

    def settle(self, accepted: tuple[int, ...]) -> None:
        """Nothing to drop: there is no cache."""

    def lookup(self, news: tuple[int, ...], gamma: int) -> tuple[int, ...]:
        """At most `gamma` tokens that followed the most recent earlier match of the suffix.

        Args:
            news: what the text has gained since the last call.
        """
        text = self._text
        for token in news:
            # What ends just before a token is followed by it, the latest occurrence counting.
            for size in self.sizes:
                if size <= len(text):
                    self._after[tuple(text[-size:])] = len(text)
            text.append(token)
        for size in self.sizes:
            start = self._after.get(tuple(text[-size:])) if size < len(text) else None
            if start is not None:
                return tuple(text[start : start + gamma])
        return ()
