"""What every worker script shares: JSON lines in, JSON lines out.

The first line says what to load and is answered by `{"hello": {...}}`; each further line is a lap
(prompts as token ids, what ends a text, sampling) and is answered by its token ids and times. A
failure is answered by `{"error": ...}` and ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]
Answer = Callable[[Message], Message]

WINDOW, CALM, PATIENCE = 0.05, 0.1, 3.0


def serve(set_up: Callable[[Message], tuple[Message, Answer]]) -> None:
    """Load by the first line, answer the others, end with the input.

    Args:
        set_up: takes what to load; returns what to tell about it, and what answers a lap.
    """
    # Engines print what they like, from C++ too: it goes where errors go.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def reply(message: Message) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        about, answer = set_up(json.loads(sys.stdin.readline()))
        settle()
        reply({"hello": {"python": sys.version.split()[0]} | about})
        for line in sys.stdin:
            lap = answer(json.loads(line))
            settle()
            reply(lap)
    except ImportError as error:
        traceback.print_exc()
        reply({"error": first_line(error), "missing": error.name})
    except Exception as error:
        traceback.print_exc()
        reply({"error": first_line(error)})


def settle() -> None:
    """Wait until this process rests: pools of threads spin on after their last work.

    The next contestant runs as soon as this one has answered, on the same cores.
    """
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        before = time.process_time()
        time.sleep(WINDOW)
        if time.process_time() - before < CALM * WINDOW:
            return


def first_line(error: Exception) -> str:
    """An error in one line, its type first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def answered(token_ids: list[int], first_seconds: float | None, first_tokens: int) -> Message:
    """One prompt's part of a lap's answer.

    Args:
        token_ids: all new ones, the end token included.
        first_seconds: from the lap's start until every prompt of the lap had new tokens; None:
            the engine can't tell.
        first_tokens: how many this prompt had then.
    """
    return {
        "token_ids": token_ids,
        "first_seconds": first_seconds,
        "first_tokens": first_tokens,
    }
