"""What a night measures before it searches: the best known setting and the user's own command, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.values import Failure, Measurement, Point


@dataclass(frozen=True, slots=True)
class CanarySeen:
    """What the turns delivered."""

    best: Point | None
    """The best known setting; None: none is known, and the user's command was measured alone."""
    live: bool
    """True: on whole steps in one session; False: every one in a launch of its own."""
    own_outcomes: tuple[Measurement | Failure, ...]
    best_outcomes: tuple[Measurement | Failure, ...]


@dataclass(frozen=True, slots=True)
class Canary:
    """A canary that a study is asked for."""

    best: Point | None
    pairs: int
    """Turns of both, at most; fewer where half of the time that is left would not do."""
    done: Callable[[CanarySeen], None]
    """Called once, before the search begins."""


def order_of_turn(turn: int) -> tuple[bool, bool]:
    """Whether the best setting comes first, and second, in a turn: sides change, so that a drift falls on both alike."""
    return (True, False) if turn % 2 == 0 else (False, True)
