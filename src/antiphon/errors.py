"""The one exception a user's mistake raises."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input, found before any work starts.

    The message is one line: what is wrong, then what to do about it. The command
    prints it and exits with status 2; the library lets it reach the caller.
    """
