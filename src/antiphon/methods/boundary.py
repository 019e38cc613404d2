"""Where a reasoning step ends, and what a profile says of steps that end there."""

from __future__ import annotations

from antiphon.errors import UserError
from antiphon.profile import Profile, Seen

BOUNDARIES = {"blank-line": "\n\n", "line": "\n"}
"""What closes a step, after some text."""


def ends_step(text: str, boundary: str) -> bool:
    """Whether its boundary closes the step: one that has some text before it."""
    body, found, _ = text.rpartition(BOUNDARIES[boundary])
    return bool(found) and bool(body.strip())


def seen_of_steps(profile: Profile, temperature: float, boundary: str) -> Seen:
    """What a profile says of steps; raises UserError where its steps end elsewhere."""
    if profile.boundary != boundary:
        raise UserError(
            f"the profile's steps end at a {profile.boundary}, the method's at a {boundary}: give "
            f"boundary={profile.boundary}, or a profile of antiphon calibrate --boundary {boundary}"
        )
    return profile.at(temperature)


def check_steps(gamma: object, longest: object, boundary: object) -> None:
    """Raise UserError for fields of a method of steps that cannot be."""
    if gamma != "auto" and (type(gamma) is not int or gamma < 0):
        raise UserError(
            f"gamma is {gamma!r}: give draft tokens a round, 0 for token by token, or 'auto'"
        )
    if type(longest) is not int or longest < 1:
        raise UserError(f"longest is {longest!r}: give a whole number >= 1")
    if boundary not in BOUNDARIES:
        raise UserError(f"boundary is {boundary!r}: choose {', '.join(BOUNDARIES)}")
