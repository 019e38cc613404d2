"""Runs programs that nobody has read, behind as many walls as the machine offers."""

from antiphon.eval.sandbox.outcome import Limits, Outcome
from antiphon.eval.sandbox.run import isolation, run_python

__all__ = ["Limits", "Outcome", "isolation", "run_python"]
