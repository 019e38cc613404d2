"""The one place that ends a text: EOS and stop tokens, stop strings, length.

This file knows where a request's output ends and what of it may be shown already. Ids, text
and everything counted along with them are cut at the length it reports.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from antiphon.detokenizer import Detokenizes
from antiphon.params import SamplingParams

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Cut:
    """What one push changed.

    length: output tokens kept so far, over all pushes; a stop string can make it less than
        it was.
    text: what became safe to show; all of them together are the visible text.
    finish_reason: 'stop' or 'length' once the text has ended, else None.
    stop_reason: the stop string or the stop token id that ended it; None for EOS and length
        (vLLM's convention).
    """

    length: int
    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None


class _Match(NamedTuple):
    """A stop string in a text. The least one is the first: by end, then by start."""

    end: int
    start: int
    stop: str


class Stopper:
    """Ends one request's output at the first event in text order.

    - EOS or a stop token: its id is kept as the last one (as vLLM and transformers do), its
      text is not shown.
    - A stop string: the text ends right before it. Kept are the tokens up to the last one
      that shows a character. Of several strings the one that ends first wins, then the one
      that starts first.
    - Length: after ``max_tokens`` tokens, unless one of the above falls on the last of them.

    Tokens are taken one by one, so the way they are split into pushes changes nothing.

    detokenizer: fresh, and this request's own.
    max_tokens: at least 1; may be less than ``params.max_tokens`` where the context ends.
    """

    def __init__(
        self,
        detokenizer: Detokenizes,
        params: SamplingParams,
        eos_token_ids: frozenset[int],
        max_tokens: int,
    ) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}: there is no room for any output")
        self._detokenizer = detokenizer
        self._stops = params.stop
        self._eos: frozenset[int] = frozenset() if params.ignore_eos else eos_token_ids
        self._stop_ids = frozenset(params.stop_token_ids)
        self._max_tokens = max_tokens
        self._shown: list[str] = []
        self._shown_length = 0
        self._held = ""  # Decoded, but a stop string may yet begin with it.
        self._ends: list[int] = []  # Characters decoded after each token; never decreases.
        self._length = 0
        self._closed = False
        self._finish_reason: FinishReason | None = None
        self._stop_reason: str | int | None = None

    @property
    def text(self) -> str:
        """All visible text so far."""
        return "".join(self._shown)

    @property
    def length(self) -> int:
        """How many output tokens are kept so far."""
        return self._length

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the text ended; None while it goes on, and after :meth:`cancel`."""
        return self._finish_reason

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token id that ended the text."""
        return self._stop_reason

    @property
    def stable_length(self) -> int:
        """How many tokens are sure to stay, all their decoded text being shown."""
        if self._closed:
            return self._length
        kept = self._tokens_showing(self._shown_length)
        return kept - 1 if kept and self._ends[kept - 1] > self._shown_length else kept

    def push(self, tokens: Sequence[int]) -> Cut:
        """Take the next output tokens [T]; those after the end are dropped.

        Raises RuntimeError once the text has ended.
        """
        if self._closed:
            raise RuntimeError("the text has ended: no token can follow")
        shown = len(self._shown)
        for token in tokens:
            if not self._take(token):
                break
        return self._cut(shown)

    def cancel(self) -> Cut:
        """End here because the caller says so, and show the text held back until now.

        The finish reason stays None. Does nothing after the end.
        """
        shown = len(self._shown)
        self._end(None)
        return self._cut(shown)

    def _take(self, token: int) -> bool:
        """Take one token; whether another may follow."""
        self._length += 1
        if token in self._eos:
            self._end("stop")
        elif token in self._stop_ids:
            self._end("stop", token)
        else:
            self._ends.append(self._shown_length + len(self._held))
            if self._read(self._detokenizer.push(token)) and self._length == self._max_tokens:
                self._end("length")
        return not self._closed

    def _read(self, piece: str) -> bool:
        """Add text to the last token, unless a stop string ends it there; whether none did."""
        if not piece:
            return True
        self._ends[-1] += len(piece)
        # Text that may begin a stop string is held, so that no match can start before it.
        self._held += piece
        match = _first_match(self._held, self._stops)
        if match is None:
            self._show(len(self._held) - _beginning(self._held, self._stops))
            return True
        self._length = self._tokens_showing(self._shown_length + match.start)
        self._close(match.start, "stop", match.stop)
        return False

    def _end(self, reason: FinishReason | None, stop_reason: int | None = None) -> None:
        """End after the tokens taken, unless a stop string has ended the text before."""
        if not self._closed and self._read(self._detokenizer.flush()):
            self._close(len(self._held), reason, stop_reason)

    def _close(
        self, visible: int, reason: FinishReason | None, stop_reason: str | int | None
    ) -> None:
        """End after the first ``visible`` held characters."""
        self._show(visible)
        self._held = ""
        self._closed = True
        self._finish_reason = reason
        self._stop_reason = stop_reason

    def _show(self, count: int) -> None:
        """Let go of the first ``count`` held characters."""
        if count:
            self._shown.append(self._held[:count])
            self._shown_length += count
            self._held = self._held[count:]

    def _tokens_showing(self, characters: int) -> int:
        """How many tokens it takes to show the first ``characters``."""
        return bisect_left(self._ends, characters) + 1 if characters else 0

    def _cut(self, shown: int) -> Cut:
        text = "".join(self._shown[shown:])
        return Cut(self._length, text, self._finish_reason, self._stop_reason)


def visible(text: str, stops: Sequence[str]) -> str:
    """What a text shows that the first of these strings ends."""
    match = _first_match(text, stops)
    return text if match is None else text[: match.start]


def _first_match(text: str, stops: Sequence[str]) -> _Match | None:
    """The first stop string in ``text``: the one that ends first, then that starts first."""
    found = ((text.find(stop), stop) for stop in stops)
    matches = (_Match(start + len(stop), start, stop) for start, stop in found if start >= 0)
    return min(matches, default=None)


def _beginning(text: str, stops: Sequence[str]) -> int:
    """How many of the last characters may be the beginning of a stop string."""
    longest = 0
    for stop in stops:
        for n in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:n]):
                longest = n
                break
    return longest
