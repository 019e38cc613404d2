"""Reads the code in a model's output, runs it with its tests, and judges."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Collection

from antiphon.eval.grade import Grade
from antiphon.eval.sandbox import Limits, run_python

# An opening fence and its language, the code, and a closing fence; the last may be missing.
_FENCED = re.compile(r"^[ \t]*```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.M | re.S)
_PYTHON = {"", "py", "py3", "python", "python3"}
_CODE_STARTS = re.compile(r"(def|class|import|from|async def) +\w|@\w")
_FUTURE = re.compile(r"^from +__future__ +import .*\n?", re.M)


def extract(output: str, names: Collection[str] = (), prompt: str = "") -> str | None:
    """The code in a chat output.

    Looked for in this order: a fenced Python block, the last that defines one of `names` before
    others; code without a fence that defines one, text around it left out; the rest of the body of
    the function that `prompt` opens.

    Args:
        output: as the model wrote it.
        names: functions or classes that the tests call; empty: unknown.
        prompt: code whose last line is in the body of an open function; "": there is none.

    Returns:
        The code, with `prompt` where it goes on from it; None where there is none.
    """
    output = output.replace("\r\n", "\n")
    blocks = [(m[1].lower(), m[2]) for m in _FENCED.finditer(output) if m[2].strip()]
    blocks = [block for block in blocks if block[0] in _PYTHON] or blocks
    if blocks:
        # A block within a list is indented as a whole.
        texts = [text if _parses(text) else textwrap.dedent(text) for _, text in blocks]
        defining = [text for text in texts if _defines(text, names)]
        whole = [text for text in defining if _parses(text)]
        if whole or defining:
            return (whole or defining)[-1]
        last = blocks[-1][1]
        return _continued(prompt, last) or texts[-1]
    if (code := _unfenced(output.strip(), names)) is not None:
        return code
    return _continued(prompt, output, strict=True)


def _parses(text: str) -> bool:
    return _error_line(text) is None


def _error_line(text: str) -> int | None:
    """Number of the line, from 1, on which code stops being Python; None: all of it is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the code's style is not ours
            ast.parse(text)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):
        return 1
    return None


def _defines(text: str, names: Collection[str]) -> bool:
    which = "|".join(map(re.escape, names)) or r"\w+"
    pattern = rf"^(?:(?:async +)?def|class) +(?:{which})\b|^(?:{which}) *(?::[^=\n]+)?=[^=]"
    if not names:
        pattern = rf"^(?:(?:async +)?def|class) +(?:{which})\b"
    return re.search(pattern, text, re.M) is not None


def _unfenced(output: str, names: Collection[str]) -> str | None:
    """Code amid prose: from the first line that looks like code to the last that parses."""
    lines = output.splitlines()
    for start, line in enumerate(lines):
        if not _CODE_STARTS.match(line):
            continue
        rest = lines[start:]
        # Each turn drops at least one line.
        while rest and (wrong := _error_line("\n".join(rest) + "\n")) is not None:
            rest = rest[: min(wrong, len(rest)) - 1]
        text = "\n".join(rest) + "\n"
        if rest and _defines(text, names):
            return text
    return None


def _continued(prompt: str, text: str, strict: bool = False) -> str | None:
    """The open function of a prompt with its body from a text; None where that is no Python.

    Args:
        strict: the text must begin in the way of a body; prose rarely parses, but "yes" does.
    """
    if not prompt or not text.strip():
        return None
    kept: list[str] = []
    body = text.strip("\n")
    indented = body[:1] in " \t"
    if re.match(r"(def|class|async def) +\w|@\w", body):
        return None  # another function, not a part of this one
    for number, line in enumerate(body.split("\n")):
        if line.strip() and number and line[0] not in " \t" and (strict or indented):
            break  # past the end of the function
        kept.append(line)
    first = "\n".join(kept)
    variants = [first] if indented else []
    if not indented and (not strict or re.search(r"^\s*return\b", first, re.M)):
        # The spaces before the first line are often lost on the way; or all of them are.
        variants = ["    " + first, textwrap.indent(body if not strict else first, "    ")]
    for variant in variants:
        code = prompt.rstrip() + "\n" + variant.rstrip() + "\n"
        if _parses(code) and isinstance(ast.parse(code).body[-1], ast.FunctionDef):
            return code
    return None


def join(*parts: str) -> str:
    """One program out of parts in order; imports from `__future__` come first, as they must."""
    text = "\n\n".join(part.replace("\r\n", "\n").strip("\n") for part in parts if part.strip())
    future = "".join(line.rstrip("\n") + "\n" for line in _FUTURE.findall(text))
    return future + _FUTURE.sub("", text) + "\n"


def grade_program(
    program: str | None, limits: Limits | None = None, answer: str | None = None
) -> Grade:
    """Run a program that ends in its tests: right if it comes to its last line.

    Args:
        program: code and tests; None or blank: there was no code.
        limits: what it may use; None: the defaults.
        answer: the code that is judged, for the record; None: the whole program.

    Returns:
        The grade; its reason is "right", "no code", "wrong: AssertionError", "error: " and the
        exception, "exit before the end", "timeout: " and which time, "memory", "too much output" or
        "killed: " and the signal. Where nothing could be run it is neither right nor wrong.
    """
    if program is None or not program.strip():
        return Grade(False, None, "no code")
    answer = program if answer is None else answer
    outcome = run_python(program, limits)
    match outcome.kind:
        case "ok":
            return Grade(True, answer, "right")
        case "error" if outcome.error == "AssertionError":
            return Grade(False, answer, "wrong: AssertionError")
        case "sandbox":
            return Grade(None, answer, f"not graded: {outcome.message or outcome.error}")
        case _:
            return Grade(False, answer, _reason(outcome.kind, outcome.error, outcome.message))


def _reason(kind: str, error: str, message: str) -> str:
    if kind == "error":
        first = message.strip().partition("\n")[0][:160]
        return f"error: {error}: {first}" if first else f"error: {error}"
    words = {"exit": "exit before the end", "output": "too much output", "memory": "memory"}
    return words.get(kind) or f"{kind}: {error}"
