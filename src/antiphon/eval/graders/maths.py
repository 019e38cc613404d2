r"""Grades mathematical answers: finds the final answer, and compares it through math-verify.

An output states its answer, in this order of trust: in its last ``\boxed{}``, after the last
``####`` (GSM8K's own convention), or as its last number.
"""

from __future__ import annotations

import re
from typing import Any

from antiphon.errors import UserError
from antiphon.eval.grade import Grade

SECONDS = 5
"""Time that math-verify may spend on reading, and on comparing, one expression."""
# A minus right after a digit, letter or bracket is a subtraction.
_NUMBER = re.compile(r"(?:(?<![\w)])[-+])?\$?\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d[\d,]*)?|\$?\.\d+")
_HASHES = re.compile(r"####\s*(.+)")


def grade(gold: str, output: str) -> Grade:
    r"""Compare the final answer of an output with the gold one.

    Args:
        gold: a number or a LaTeX expression, without ``\boxed`` around it.
        output: the model's whole text.
    """
    answer = final_answer(output)
    if answer is None:
        return Grade(False, None, "no answer")
    try:
        right = equal(gold, answer)
    except UserError:
        raise
    except BaseException as error:  # math-verify's time-out is not an Exception everywhere.
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return Grade(False, answer, f"not compared: {type(error).__name__}: {error}"[:200])
    return Grade(right, answer, "right" if right else "wrong")


def final_answer(output: str) -> str | None:
    """What an output states as its answer; None: it has neither box nor number."""
    boxed = _last_box(output)
    if boxed is not None:
        return boxed or None
    hashes = _HASHES.findall(output)
    if hashes:
        return str(hashes[-1]).strip()
    numbers = _NUMBER.findall(output)
    return str(numbers[-1]).strip() if numbers else None


def equal(gold: str, answer: str) -> bool:
    """Whether two answers mean the same: as numbers, as text, or to math-verify."""
    a, b = _as_number(gold), _as_number(answer)
    if a is not None and b is not None:
        return a == b
    if _squeezed(gold) == _squeezed(answer):
        return True
    parse, verify = _math_verify()
    return bool(
        verify(
            parse(_as_latex(gold), parsing_timeout=SECONDS),
            parse(_as_latex(answer), parsing_timeout=SECONDS),
            timeout_seconds=SECONDS,
        )
    )


def _math_verify() -> tuple[Any, Any]:
    try:
        from math_verify import parse, verify
    except ImportError:
        raise UserError(
            "maths tasks need math-verify: install it with pip install 'antiphon[eval]'"
        ) from None
    return parse, verify


def _last_box(text: str) -> str | None:
    r"""The content of the last complete ``\boxed{...}``, braces balanced."""
    for start in reversed([m.end() for m in re.finditer(r"\\(?:boxed|fbox)\s*\{", text)]):
        depth = 1
        for place in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[start:place].strip()
    return None


def _as_number(text: str) -> float | None:
    """A plain number, such as ``-1,250.50`` or ``$12``; None for anything else."""
    plain = re.sub(r"\\[$!,]|[,$\s]", "", text).removesuffix(".").removesuffix("\\%")
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)", plain):
        return float(plain)
    return None


def _squeezed(text: str) -> str:
    return re.sub(r"\s|\\left|\\right|\\[!,;]|\$", "", text).replace("dfrac", "frac")


def _as_latex(text: str) -> str:
    return text if "$" in text else f"${text}$"
