"""How text looks on a terminal: colours, or brackets, tell who wrote each token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from antiphon.detokenizer import Detokenizer
from antiphon.request import Provenance
from antiphon.result import Result

STYLES: dict[Provenance, str] = {
    "target": "",
    "draft": "green",
    "bonus": "cyan",
    "correction": "bold magenta",
}


class Painter:
    """Colours one sample's tokens as their text becomes final."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int]) -> None:
        self._detokenizer = Detokenizer(tokenizer, prompt)

    def paint(self, tokens: Sequence[int], provenance: Sequence[Provenance]) -> Iterator[Text]:
        for token, who in zip(tokens, provenance, strict=True):
            yield Text(self._detokenizer.push(token), style=STYLES[who])


def painted(tokenizer: Any, prompt: Sequence[int], result: Result, console: Console) -> Text:
    """A result's text, coloured; without colours, drafted stretches stand in [brackets]."""
    whole = Text()
    pieces = Painter(tokenizer, prompt).paint(result.token_ids, result.provenance)
    bracketed = not console.is_terminal or console.no_color
    inside = False
    for piece, who in zip(pieces, result.provenance, strict=True):
        room = len(result.text) - len(whole.plain.replace("⟦", "").replace("⟧", ""))
        piece.truncate(room)
        if bracketed and (who == "draft") != inside and piece.plain:
            whole.append("⟧" if inside else "⟦")
            inside = not inside
        whole.append_text(piece)
    if inside:
        whole.append("⟧")
    return whole


def legend(console: Console) -> Text:
    """Explains `painted`."""
    if not console.is_terminal or console.no_color:
        return Text("⟦drafted and accepted⟧, the rest is the target's")
    line = Text()
    for who, style in STYLES.items():
        line.append(who, style=style).append("  ")
    return line


def summary(result: Result) -> str:
    """One line of statistics."""
    s = result.statistics
    line = (
        f"{s.completion_tokens} tokens in {s.prefill_seconds + s.decode_seconds:.2f} s, "
        f"{s.tokens_per_second:.1f} tok/s, {s.target_passes} target passes"
    )
    if s.num_spec_steps:
        line += (
            f", {s.draft_passes} draft passes, {s.draft_acceptance_rate:.0%} of drafts accepted, "
            f"{s.mean_acceptance_length:.2f} tokens a round"
        )
    return line
