"""What a study says while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.measure.runner import Event
from autotune.store.records import TrialRecord
from autotune.values import Point, TrialKind

if TYPE_CHECKING:
    from autotune.tuner.prepare import Prepared


class Listener:
    """Called from the study's own thread, in order; every method does nothing here, so that one may override what one needs."""

    def study_started(self, name: str, prepared: Prepared) -> None:
        """The study is in the store and the baseline comes next."""

    def trial_started(self, number: int, kind: TrialKind, point: Point, origin: str) -> None:
        """A launch begins."""

    def trial_event(self, number: int, event: Event) -> None:
        """Something happened in the running launch."""

    def trial_finished(self, trial: TrialRecord) -> None:
        """A launch ended and is stored."""

    def said(self, text: str) -> None:
        """Something the user should know, in one sentence."""
