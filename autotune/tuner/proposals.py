"""Optuna by ask and tell: the first Points, then a sampler, over integer rungs of a flat space."""

from __future__ import annotations

import warnings as python_warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import TrialState as OptunaState

from autotune.search.dominance import Misfit, dominated
from autotune.search.first_points import FirstPoint
from autotune.search.space import Space
from autotune.tuner.launched import Launched, may_repeat
from autotune.tuner.request import SamplerName
from autotune.values import Failure, Measurement, Point, Refusal, TrialState
from autotune.verl.knobs import Knob
from autotune.verl.settings import canonical

CONSTRAINT = "launch"
"""The one constraint of every trial: above 0 where verl could not run the Point. GP wants the same keys on each trial."""
_TRIES = 200
_LISTED = 1000
"""A space of at most so many combinations is listed, so that its end is known."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A Point to measure next, and the Optuna trial that will be told."""

    point: Point
    origin: str
    trial: optuna.trial.Trial


class Proposer:
    """Proposes Points that are new and that arithmetic does not refuse, and tells Optuna how they did.

    A Point that was measured already, or differs from one only in knobs that are asleep, is not measured again: the
    Optuna trial ends as FAIL, from which no sampler learns. One that arithmetic refuses is told as infeasible, at no cost.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        first: Sequence[FirstPoint],
        refuse: Callable[[Point], list[Refusal]],
        knobs: Mapping[str, Knob],
    ) -> None:
        self._study = study
        self._space = space
        self._first = deque(first)
        self._refuse = refuse
        self._knobs = knobs
        self._misfits: list[Misfit] = []
        self._seen: set[Point] = set()
        self._worst: float | None = None
        self._pending: deque[Proposal] = deque()
        self.refused_before = 0
        """How many Points arithmetic refused before the study was taken up again."""
        self.refused: list[tuple[Point, Refusal]] = []
        """Points that arithmetic refused, with the first reason."""
        self._distributions: dict[str, BaseDistribution] = {
            dimension.key: IntDistribution(0, len(dimension.choices) - 1) for dimension in space.dimensions
        }

    def baseline(self) -> Proposal:
        """The user's own command, trial 0."""
        for proposal in self._pending:
            if proposal.point == self._space.baseline:
                self._pending.remove(proposal)
                return replace(proposal, origin="the user's own command, taken up again")
        return self._fixed(self._space.baseline, "the user's own command")

    def next(self) -> Proposal | None:
        """The next Point, or None when no new one was found."""
        while self._pending:
            proposal = self._pending.popleft()
            if self._acceptable(proposal):
                return proposal
        while self._first:
            wanted = self._first.popleft()
            if canonical(wanted.point, self._space.baseline) in self._seen:
                continue
            proposal = self._fixed(wanted.point, wanted.reason)
            if self._acceptable(proposal):
                return proposal
        for _ in range(_TRIES):
            if self._all is not None and self._all <= self._seen:
                return None  # else the sampler would be asked to the last try, and every answer stored: seconds for nothing
            trial = self._study.ask(self._distributions)
            point = canonical(self._space.point(trial.params), self._space.baseline)
            proposal = Proposal(point, self._study.sampler.__class__.__name__.removesuffix("Sampler").lower(), trial)
            if self._acceptable(proposal):
                return proposal
        return None

    @cached_property
    def _all(self) -> frozenset[Point] | None:
        """Every Point of the space; None where it is too large to be listed."""
        if self._space.size > _LISTED:
            return None
        return frozenset(canonical(point, self._space.baseline) for point in self._space.points())

    def restore(self, launches: Sequence[Launched], value: Callable[[Launched], float]) -> None:
        """Takes up a study where another tuner left it: what it measured is known, what it did not tell is told now.

        Every Optuna trial that is still open belongs to a launch that ended without being told, to one that was lost, or to
        none; the lost ones are proposed again, on the same trial, before anything else.

        Args:
            launches: all launches of the study that have ended, by number.
            value: what Optuna is told about a launch that measured.
        """
        for run in launches:
            if run.state is TrialState.INFEASIBLE and isinstance(run.outcome, Failure) and not run.outcome.not_tried:
                self._misfits.append(Misfit(run.point, run.outcome))
            if isinstance(run.outcome, Measurement):
                found = value(run)
                self._worst = found if self._worst is None else min(self._worst, found)
        while self._study.get_trials(deepcopy=False, states=(OptunaState.WAITING,)):
            self._study.ask(self._distributions)
        for frozen in self._study.get_trials(deepcopy=False):
            runs = [run for run in launches if run.optuna_number == frozen.number]
            if frozen.state is OptunaState.COMPLETE and not runs:
                self.refused_before += 1
            if frozen.params.keys() != self._distributions.keys():
                if not frozen.state.is_finished():  # killed between the question and its answer
                    self._study.tell(frozen.number, state=OptunaState.FAIL)
                continue
            point = canonical(self._space.point(frozen.params), self._space.baseline)
            if frozen.state.is_finished():
                if runs or frozen.state is OptunaState.COMPLETE:
                    self._seen.add(point)
                continue
            trial = optuna.trial.Trial(self._study, frozen._trial_id)
            proposal = Proposal(point, "taken up again", trial)
            if may_repeat(runs):
                self._pending.append(proposal)
                continue
            self._seen.add(point)
            last = runs[-1]
            if isinstance(last.outcome, Measurement):
                self.measured(proposal, value(last))
            elif last.state is TrialState.INFEASIBLE:
                self.infeasible(proposal)
            else:
                self.lost(proposal)

    def measured(self, proposal: Proposal, value: float) -> None:
        """The Point was measured; larger values are better."""
        self._worst = value if self._worst is None else min(self._worst, value)
        proposal.trial.set_constraint(CONSTRAINT, -1.0)
        self._study.tell(proposal.trial, value)

    def infeasible(self, proposal: Proposal, failure: Failure | None = None) -> None:
        """verl cannot run the Point: told as a violated constraint with the worst value seen, never as FAIL.

        Args:
            failure: what its launch ended with; None: it was refused before.
        """
        if failure is not None and not failure.not_tried:
            self._misfits.append(Misfit(proposal.point, failure))
        proposal.trial.set_constraint(CONSTRAINT, 1.0)
        self._study.tell(proposal.trial, self._worst if self._worst is not None else 0.0)

    def lost(self, proposal: Proposal) -> None:
        """Nothing was learnt about the Point (the host's fault, or the user's stop)."""
        proposal.trial.set_constraint(CONSTRAINT, 0.0)
        self._study.tell(proposal.trial, state=OptunaState.FAIL)

    def _fixed(self, point: Point, origin: str) -> Proposal:
        self._study.enqueue_trial(self._space.rungs(point))
        trial = self._study.ask(self._distributions)
        return Proposal(canonical(point, self._space.baseline), origin, trial)

    def _acceptable(self, proposal: Proposal) -> bool:
        if proposal.point in self._seen:
            self.lost(proposal)
            return False
        self._seen.add(proposal.point)
        reasons = self._refuse(proposal.point)
        reason = reasons[0] if reasons else dominated(proposal.point, self._misfits, self._knobs)
        if reason is not None:
            self.refused.append((proposal.point, reason))
            self.infeasible(proposal)
            return False
        return True

    def take(self, proposal: Proposal) -> Proposal:
        """Marks a Point as measured that was not proposed by `next` (the baseline)."""
        self._seen.add(proposal.point)
        return proposal


def make_sampler(name: SamplerName, *, seed: int, trials: int) -> optuna.samplers.BaseSampler:
    """The sampler of that name; the first Points count among its start-up trials."""
    startup = max(3, min(10, trials // 3))
    if name is SamplerName.RANDOM:
        return optuna.samplers.RandomSampler(seed=seed)
    if name is SamplerName.GP:
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=startup)
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("ignore", ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True, n_startup_trials=startup)
