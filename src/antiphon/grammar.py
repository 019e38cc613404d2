"""Outputs in a language: which tokens may come next, by llguidance.

The mask is a stage of the sampling pipeline, so p and q are masked alike, and every method keeps to
the grammar without knowing of it. Needs ``pip install 'antiphon[serve]'``.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from antiphon.errors import UserError

_KEPT = 256
"""States that are remembered: the beginnings that drafts and particles branch from."""


class Grammar:
    """A language of outputs, for `SamplingParams.grammar`.

    Args:
        tokenizer: a transformers fast tokenizer.
        text: the grammar in llguidance's form; see `json_grammar`.
        eos_token_ids: the tokens that end a text.

    Raises:
        UserError: for a grammar that llguidance refuses, and where it is not installed.
    """

    def __init__(self, tokenizer: Any, text: str, eos_token_ids: Sequence[int]) -> None:
        llguidance = _library()
        ends = sorted(eos_token_ids)
        whole = getattr(tokenizer, "whole", tokenizer)  # See `models.tokenizer`.
        tokens = llguidance.hf.from_tokenizer(whole, n_vocab=len(whole), eos_token=ends)
        problem = llguidance.LLMatcher.validate_grammar(text, tokens)
        if problem:
            raise UserError(f"the grammar is refused: {str(problem).splitlines()[0]}")
        self._size = int(tokens.vocab_size)
        self._ends = ends
        self._states: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._states[()] = llguidance.LLMatcher(tokens, text, log_level=0)

    def allowed(self, output: tuple[int, ...], vocab_size: int) -> torch.Tensor:
        """Which tokens may follow an output, bool ``[V]``; at least one.

        All may where the output has left the language already: that is a draft which is refused
        before this row is looked at.
        """
        state = self._state(output)
        row = torch.zeros(vocab_size, dtype=torch.bool)
        if state.is_error():
            return ~row
        if state.is_stopped():
            row[self._ends] = True
            return row
        bits = np.unpackbits(np.frombuffer(state.compute_bitmask(), np.uint8), bitorder="little")
        size = min(self._size, vocab_size)
        row[:size] = torch.from_numpy(bits[:size].astype(np.bool_))
        if not bool(row.any()):
            row[self._ends] = True
        return row

    def _state(self, output: tuple[int, ...]) -> Any:
        """The matcher after an output, from the longest beginning that is remembered."""
        known = len(output)
        while output[:known] not in self._states:
            known -= 1
        state = self._states[output[:known]]
        for end in range(known, len(output)):
            state = state.deep_copy()
            if not state.is_stopped():
                state.consume_token(output[end])
            self._remember(output[: end + 1], state)
        return state

    def _remember(self, output: tuple[int, ...], state: Any) -> None:
        self._states[output] = state
        if len(self._states) > _KEPT:
            oldest = next(key for key in self._states if key)  # The beginning always stays.
            del self._states[oldest]


def json_grammar(schema: Mapping[str, Any] | None) -> str:
    """The grammar of JSON values of a schema, without free white space; None: of any object.

    A small model that may write white space wherever JSON allows it writes nothing else.

    Raises UserError for a schema that llguidance cannot read.
    """
    try:
        text: str = _library().LLMatcher.grammar_from_json_schema(
            json.dumps(schema or {"type": "object"}), overrides={"whitespace_flexible": False}
        )
    except ValueError as error:
        raise UserError(f"the schema is refused: {error}") from None
    return text


def _library() -> Any:
    try:
        import llguidance
        import llguidance.hf
    except ImportError:
        raise UserError("grammars need llguidance: pip install 'antiphon[serve]'") from None
    return llguidance
