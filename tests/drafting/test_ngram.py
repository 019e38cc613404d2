"""Prompt lookup against a search of the whole text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.drafting.ngram import NGram


def search(text: tuple[int, ...], longest: int, gamma: int) -> tuple[int, ...]:
    for size in range(min(longest, len(text) - 1), 1, -1):
        suffix = text[-size:]
        for start in range(len(text) - size - 1, -1, -1):
            if text[start : start + size] == suffix:
                return text[start + size : start + size + gamma]
    return ()


@given(
    parts=st.lists(st.lists(st.integers(0, 2), max_size=6).map(tuple), max_size=8),
    longest=st.integers(2, 5),
    gamma=st.integers(1, 5),
)
def test_the_index_finds_what_a_search_would(
    parts: list[tuple[int, ...]], longest: int, gamma: int
) -> None:
    """Guards the index as the text grows: the latest match, and never the suffix itself."""
    drafter, text = NGram(longest), ()
    for part in parts:
        text += part
        assert drafter.lookup(part, gamma) == search(text, longest, gamma)
