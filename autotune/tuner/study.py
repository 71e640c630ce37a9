"""One study from its first launch to its verdict."""

from __future__ import annotations

import math
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from autotune.measure.interference import told_theft
from autotune.measure.runner import Event, Order, Runner, StepPlan, StepSeen
from autotune.measure.warm import WarmRunner
from autotune.search.memory import SLOPE_STEPS, slope, too_full
from autotune.search.verdict import Judgement, LaunchSample, judge
from autotune.store.store import Store
from autotune.tuner import wording
from autotune.tuner.canary import Canary, CanarySeen, order_of_turn
from autotune.tuner.launched import CAUSE_UNKNOWN, Launched, may_repeat
from autotune.tuner.listener import Listener
from autotune.tuner.persist import Persistence, disk_failure
from autotune.tuner.prepare import Prepared
from autotune.tuner.proposals import Proposal, Proposer
from autotune.tuner.request import Objective, RunnerName
from autotune.tuner.sessions import adrift, comparable, gradient_equal
from autotune.tuner.wording import duration
from autotune.values import (
    Decision,
    Failure,
    FailureClass,
    Measurement,
    MemoryCheck,
    Phase,
    Point,
    Refusal,
    TrialKind,
    TrialState,
)
from autotune.verl import keys
from autotune.verl.settings import canonical, rejected_echo

HOOK_FILE = "autotune_hooks.py"
GIVE_UP_AFTER = 6
"""Search launches in a row that delivered nothing; more would only burn the night (auto-tuning-vllm issue 117)."""
LAUNCHES_IN = 5
"""One Point in so many may need a launch of its own while a session could measure others at a fraction of the price."""
PASS_OVER_AT_MOST = 200
"""Proposals in a row that would need a launch of their own, after which the session has nothing left to measure."""
AFTER_THE_CHOICE = frozenset({TrialKind.CONFIRM, TrialKind.CANARY})
"""Launches that were made when their Point had been chosen already, so that their figures do not flatter it."""
CHECKED_AT_MOST = 5
"""Points in order of their result that are tried with longest trajectories until one fits."""
FINALISTS = 3
"""How many Points in order of their result are tried as winner when the first cannot be measured again."""


class StudyRun:
    """Runs a prepared study: baseline, search, confirmation, verdict. Writes everything to the store as it happens."""

    def __init__(
        self,
        prepared: Prepared,
        store: Store,
        study_id: int,
        proposer: Proposer,
        runner: Runner,
        *,
        hook_source: Path,
        compose: Callable[[Point], Mapping[str, Any] | Refusal],
        now: Callable[[], float],
        listener: Listener | None = None,
        history: Sequence[Launched] = (),
        canary: Canary | None = None,
        deadline: float | None = None,
    ) -> None:
        """
        Args:
            compose: a Point's flat configuration as Hydra composes it and verl validates it in the user's interpreter, or
                why they refuse it.
            now: a clock that only moves forward, seconds.
            history: the launches of the study so far, where it is taken up again; the proposer knows them already.
            canary: measured before the search, also where the study is taken up again.
            deadline: when the verdict must be there, by the clock `now`; None: the request's time budget alone counts.
        """
        self._prepared = prepared
        self._request = prepared.request
        self._store = store
        self._study_id = study_id
        self._proposer = proposer
        self._runner = runner
        self._compose = compose
        self._now = now
        self._listener = listener or Listener()
        self._stop = threading.Event()
        self._persist = Persistence(
            store, study_id, self._request.study, self._request.out, self._listener.said, stopped=self._stop.is_set
        )
        self._begin = now()
        self._canary = canary
        self._deadline = deadline
        self._launched: list[Launched] = list(history)
        self._spent_before = sum(
            run.wall_seconds for run in history if math.isfinite(run.wall_seconds) and run.kind is not TrialKind.ANCHOR
        )
        self._sessions = runner if isinstance(runner, WarmRunner) else None
        self._anchors = 0
        self._checks = {check.point: check for check in store.memory_checks(study_id)}
        self._runs = self._request.out / "runs"
        self._runs.mkdir(parents=True, exist_ok=True)
        self._hook_file = (self._runs / HOOK_FILE).resolve()
        shutil.copyfile(hook_source, self._hook_file)

    def stop(self, *, now: bool) -> None:
        """Ends the study: after the step that is running, or at once. `execute` still stores a verdict."""
        self._stop.set()
        self._runner.stop(now=now)

    @property
    def stopped(self) -> bool:
        """Whether the user ended it."""
        return self._stop.is_set()

    def execute(self) -> Mapping[str, Any]:
        """Runs to the end of its budget; returns the verdict as it is stored."""
        baseline = self._baseline()
        if baseline is None:
            return self._close("stopped" if self.stopped else "failed", self._failed_verdict())
        if self._sessions is not None and isinstance(baseline.outcome, Measurement):
            self._sessions.expect(baseline.outcome, self._listener.said)
        self._say_how()
        if self._canary is not None and not self._stop.is_set():
            self._measure_canary(self._canary)
        self._search()
        verdict = self._verdict(self._confirm())
        return self._close("stopped" if self.stopped else "finished", verdict)

    def _baseline(self) -> Launched | None:
        """The user's own command, measured now unless an earlier tuner of this study did; None: it cannot be measured."""
        for run in self._launched:
            if run.kind is TrialKind.BASELINE and run.state is TrialState.MEASURED:
                return run
        proposal = self._proposer.take(self._proposer.baseline())
        launched = self._launch(proposal.point, TrialKind.BASELINE, proposal.origin, proposal)
        return launched if launched.state is TrialState.MEASURED else None

    def _measure_canary(self, canary: Canary) -> None:
        """Measures the canary's pairs: all in one session where the best setting can be had in one, so that launches and
        their differences play no part; else each in a launch of its own."""
        own = self._prepared.space.baseline
        best = None if canary.best is None or canary.best == own else canary.best
        live = self._sessions is not None and self._sessions.is_live(own if best is None else best)
        outcomes: dict[bool, list[Measurement | Failure]] = {True: [], False: []}
        begin = self._now()
        half = math.inf if self._deadline is None else (self._deadline - begin) / 2
        for turn in range(canary.pairs):
            if turn >= 2 and (self._now() - begin) * (turn + 1) / turn > half:
                self._listener.said(
                    f"The canary ends after {turn} pairs: more would take half of the time that is left."
                )
                break
            for of_best in order_of_turn(turn):
                if of_best and best is None:
                    continue
                point = own if best is None or not of_best else best
                who = "the best setting so far" if of_best else "the user's own command"
                run = self._launch(
                    canonical(point, own),
                    TrialKind.CANARY,
                    f"canary {turn + 1} of {canary.pairs}: {who}",
                    None,
                    own_launch=not live,
                )
                if self._stop.is_set():
                    return
                outcomes[of_best].append(run.outcome)
            if any(isinstance(made[-1], Failure) for made in outcomes.values() if made):
                break
        canary.done(CanarySeen(best, live, tuple(outcomes[False]), tuple(outcomes[True])))

    def _say_how(self) -> None:
        """Where every Point costs a launch, what the budget affords."""
        reason = None if self._sessions is None else self._sessions.unsupported
        if self._request.runner is RunnerName.COLD or reason is None:
            return
        launch = median(run.wall_seconds for run in self._launched if math.isfinite(run.wall_seconds))
        text = f"No session ({reason}): every Point costs a launch of about {duration(launch)}"
        if self._request.time_budget is not None:
            left = self._request.time_budget - self._spent_before - (self._now() - self._begin)
            affords = max(0, int(left / launch) - 2 * self._request.confirmations)
            text += f"; after the confirmation the time budget affords {affords} of them"
        self._listener.said(f"{text}.")

    def _search(self) -> None:
        """Points of the session first, then those that need a launch of their own: the other order would start many sessions."""
        deferred = self._search_live()
        self._check_memory()
        self._measure_again()
        for proposal in deferred:
            if self._stop.is_set():
                return  # what is left open is proposed again when the study goes on
            if not self._time_for_another(fresh=True):
                self._listener.said("The time budget is spent but for the confirmation; the search ends here.")
                return
            self._launch(proposal.point, TrialKind.SEARCH, proposal.origin, proposal)

    def _search_live(self) -> list[Proposal]:
        """Measures what the budget allows; returns the Points that need a launch of their own and were put off."""
        barren = passed_over = 0
        deferred: list[Proposal] = []
        while not self._stop.is_set() and self._searched() + len(deferred) < self._request.trials:
            if not self._time_for_another():
                self._listener.said("The time budget is spent but for the confirmation; the search ends here.")
                return []
            proposal = self._proposer.next()
            if proposal is None:
                self._listener.said("No Point is left that is new and that arithmetic allows; the search ends here.")
                return deferred
            composed = self._compose(proposal.point)
            if isinstance(composed, Refusal):
                self._proposer.refused.append((proposal.point, composed))
                self._proposer.infeasible(proposal)
                continue
            if self._sessions is not None and not self._sessions.is_live(proposal.point):
                if len(deferred) < max(2, self._request.trials // LAUNCHES_IN):
                    deferred.append(proposal)
                    continue
                if self._sessions.unsupported is None:  # dear, while there are cheap ones
                    self._proposer.lost(proposal)
                    passed_over += 1
                    if passed_over >= PASS_OVER_AT_MOST:
                        return deferred
                    continue
            launched = self._launch(proposal.point, TrialKind.SEARCH, proposal.origin, proposal)
            if launched.not_tried:
                continue
            barren = 0 if launched.state is TrialState.MEASURED else barren + 1
            if barren >= GIVE_UP_AFTER:
                self._listener.said(
                    f"{barren} Points in a row delivered nothing; the search ends here. See their failures."
                )
                return []
        return deferred

    def _measure_again(self) -> None:
        """Points of a session that was no longer as it had been are measured once more."""
        if self._sessions is None or self._stop.is_set():
            return
        self._sessions.retire(self._request.plan)
        self._take_anchors()
        labels = adrift(self._sessions.baselines, self._sessions.places)
        again = [run for run in self._launched if label_of(run.number) in labels and run.kind is TrialKind.SEARCH]
        if again:
            self._listener.said(
                f"The user's own command became faster or slower inside the session; {len(again)} Points are measured again."
            )
        for run in again:
            if self._stop.is_set() or not self._time_for_another():
                return
            self._launch(run.point, TrialKind.SEARCH, "measured again: its session had drifted", None)
        if again:
            self._check_memory()

    def _check_memory(self) -> None:
        """Trains the user's command once with every trajectory as long as the job allows, then the best Points in their order
        until one fits: what ran well for some steps may run out of memory on the night when all responses are long.

        The session measures the user's command once more before, since on several GPUs it does not survive what does not fit.
        """
        if self._sessions is None or self._stop.is_set():
            return
        self._sessions.revisit(self._request.plan)
        own = self._longest(self._prepared.space.baseline)
        if own is None:
            return
        for candidate in self._ranking()[:CHECKED_AT_MOST]:
            check = None if self._stop.is_set() else self._longest(candidate)
            if check is None:
                return  # what cannot be checked is not held back
            why = too_full(check, own)
            if why is None:
                return
            changed = wording.changes(candidate.changes_from(self._prepared.space.baseline))
            self._listener.said(
                f"{changed} is left out: with every response at its limit {why}. The next best takes its place."
            )

    def _longest(self, point: Point) -> MemoryCheck | None:
        """The check of a Point, made now unless it was before; None: it cannot be made."""
        if point not in self._checks and self._sessions is not None:
            seconds = self._sessions.longest_seconds()
            if seconds is None:
                return None
            if not self._time_for(seconds):
                self._listener.said(
                    f"Memory with every response at its limit is not measured: such a step takes about {duration(seconds)}, and the "
                    "time is spent but for the confirmation."
                )
                return None
            check = self._sessions.longest(point)
            if check is None:
                return None
            self._persist.insist("what was measured", lambda: self._store.add_memory_check(self._study_id, check))
            self._checks[point] = check
        return self._checks.get(point)

    def _left_out(self, point: Point) -> bool:
        """Whether the Point may run out of memory where the user's command does not."""
        check = self._checks.get(point)
        return check is not None and too_full(check, self._checks.get(self._prepared.space.baseline)) is not None

    def _take_anchors(self) -> None:
        """Stores what sessions measured of the user's own command since this was called last."""
        if self._sessions is None:
            return
        for visit in self._sessions.baselines[self._anchors :]:
            self._anchors += 1
            for outcome, how in ((visit.measurement, "whole steps"), (visit.composed, "put together from probes")):
                own = self._prepared.space.baseline
                origin = f"the user's own command after {visit.place} Points of session {visit.session}, {how}"
                number, _ = self._begin_trial(own, TrialKind.ANCHOR, origin, None)
                self._end_trial(number, own, TrialKind.ANCHOR, None, outcome, TrialState.MEASURED, outcome.wall_seconds)

    def _confirm(self) -> Point | None:
        """The best Point that could be launched again, and the user's command with it, in turns."""
        earlier = self._confirmed_last()
        for candidate in self._ranking()[:FINALISTS]:
            if self._request.confirmations == 0 or self._stop.is_set():
                return candidate
            made = self._interleaved(candidate, earlier)
            earlier = []
            if any(run.point == candidate and run.state is TrialState.MEASURED for run in made):
                return candidate
            if self._stop.is_set():
                return candidate
            self._listener.said("The best Point could not be measured again; the next one takes its place.")
        return None

    def _interleaved(self, candidate: Point, earlier: Sequence[Launched]) -> list[Launched]:
        """Launches a candidate and the user's command in turns; what an earlier tuner did of that is not done again."""
        own = self._prepared.space.baseline
        done = [run for run in earlier if run.state is TrialState.MEASURED]
        made = list(earlier) if any(run.point == candidate for run in earlier) else []
        for turn in range(self._request.confirmations):
            pair = [candidate, own]
            for point in pair if turn % 2 == 0 else reversed(pair):
                if self._stop.is_set():
                    return made
                before = next((run for run in done if run.point == point), None)
                if before is not None:
                    done.remove(before)
                    continue
                who = "the user's own command" if point == own else "the best Point"
                made.append(self._launch(canonical(point, own), TrialKind.CONFIRM, f"{who} once more", None))
        return made

    def _confirmed_last(self) -> list[Launched]:
        """The confirming launches that an earlier tuner of this study ended with, of one candidate."""
        own = self._prepared.space.baseline
        found: list[Launched] = []
        for run in reversed([run for run in self._launched if run.kind is not TrialKind.ANCHOR]):
            others = {other.point for other in found} - {own}
            if run.kind is not TrialKind.CONFIRM or (run.point != own and others - {run.point}):
                break
            found.insert(0, run)
        return found

    def _launch(
        self, point: Point, kind: TrialKind, origin: str, proposal: Proposal | None, *, own_launch: bool = False
    ) -> Launched:
        attempts = self._attempts(point, kind, proposal)
        while True:
            again = any(not attempt.lost for attempt in attempts)
            origin_now = f"{origin} (again)" if attempts else origin
            attempts.append(self._attempt(point, kind, origin_now, proposal, again=again, own_launch=own_launch))
            if self._stop.is_set() or not may_repeat(attempts):
                break
        launched = attempts[-1]
        self._tell(proposal, launched)
        return launched

    def _attempts(self, point: Point, kind: TrialKind, proposal: Proposal | None) -> list[Launched]:
        """Launches of the same proposal that an earlier tuner lost."""
        if proposal is None:
            return []
        return [run for run in self._launched if run.optuna_number == proposal.trial.number and run.kind is kind]

    def _attempt(
        self,
        point: Point,
        kind: TrialKind,
        origin: str,
        proposal: Proposal | None,
        *,
        again: bool,
        own_launch: bool,
    ) -> Launched:
        number, run_dir = self._begin_trial(point, kind, origin, proposal)
        begin = self._now()

        def watch(event: Event) -> None:
            if isinstance(event, StepSeen):
                self._persist.add_step(number, event.step)
            self._listener.trial_event(number, event)

        # The user's own command and the finalists are launched as their users would launch them.
        fresh = own_launch or kind in (TrialKind.BASELINE, TrialKind.CONFIRM)
        overrides = self._prepared.overrides(point, self._hook_file)
        whole = kind is TrialKind.CANARY
        plan = self._plan(point, kind)
        order = Order(label_of(number), point, overrides, run_dir, plan, fresh=fresh, whole=whole)
        outcome = self._measure(order, watch)
        seconds = self._now() - begin
        state, outcome = self._classify(point, outcome, again=again)
        launched = self._end_trial(number, point, kind, proposal, outcome, state, seconds)
        self._take_anchors()
        return launched

    def _plan(self, point: Point, kind: TrialKind) -> StepPlan:
        """The steps of a launch; the best Point trains for long enough to see whether its memory grows from step to step."""
        plan = self._request.plan
        if kind is not TrialKind.CONFIRM or point == self._prepared.space.baseline:
            return plan
        return replace(plan, at_least=max(SLOPE_STEPS, plan.at_least), at_most=max(SLOPE_STEPS, plan.at_most))

    def _begin_trial(self, point: Point, kind: TrialKind, origin: str, proposal: Proposal | None) -> tuple[int, Path]:
        overrides = self._prepared.overrides(point, self._hook_file)
        number = self._persist.insist(
            "the next launch",
            lambda: self._store.add_trial(
                self._study_id,
                kind=kind,
                point=point,
                overrides=overrides,
                origin=origin,
                optuna_number=proposal.trial.number if proposal else None,
                simulated=self._request.simulated,
            ),
        )
        run_dir = self._runs / label_of(number)
        self._persist.insist(
            "the next launch",
            lambda: self._store.start_trial(self._study_id, number, run_dir=str(run_dir.resolve())),
        )
        self._listener.trial_started(number, kind, point, origin)
        return number, run_dir

    def _end_trial(
        self,
        number: int,
        point: Point,
        kind: TrialKind,
        proposal: Proposal | None,
        outcome: Measurement | Failure,
        state: TrialState,
        seconds: float,
    ) -> Launched:
        record = self._persist.finish_trial(number, state, outcome, wall_seconds=seconds)
        launched = Launched(number, proposal.trial.number if proposal else None, kind, point, outcome, state, seconds)
        self._launched.append(launched)
        self._listener.trial_finished(record)
        return launched

    def _measure(self, order: Order, watch: Callable[[Event], None]) -> Measurement | Failure:
        try:
            return self._runner.measure(order, watch)
        except OSError as error:
            failure = disk_failure(error)
            if failure is None:
                raise
            return failure

    def _classify(
        self, point: Point, outcome: Measurement | Failure, *, again: bool
    ) -> tuple[TrialState, Measurement | Failure]:
        if isinstance(outcome, Failure):
            if outcome.failure_class is FailureClass.INTERFERENCE:
                return TrialState.INVALID, outcome
            unexplained = outcome.failure_class in CAUSE_UNKNOWN and not again
            infrastructure = outcome.retryable or unexplained or outcome.failure_class is FailureClass.UNKNOWN
            return (TrialState.FAILED if infrastructure else TrialState.INFEASIBLE), outcome
        wanted = {key: value for key, value in point.as_dict().items() if key in self._prepared.space}
        wrong = rejected_echo(wanted, outcome.echo)
        if wrong:
            return TrialState.INVALID, Failure(
                FailureClass.CONFIG_ASSERTION,
                Phase.CONFIG,
                "The setting never took effect; the Point is not counted.",
                "; ".join(wrong),
                False,
            )
        return TrialState.MEASURED, outcome

    def _tell(self, proposal: Proposal | None, launched: Launched) -> None:
        if proposal is None:
            return
        self._persist.insist("what was measured", lambda: self._tell_sampler(proposal, launched))

    def _tell_sampler(self, proposal: Proposal, launched: Launched) -> None:
        if isinstance(launched.outcome, Measurement):
            self._proposer.measured(proposal, self._value(launched))
        elif launched.state is TrialState.INFEASIBLE:
            self._proposer.infeasible(proposal, launched.outcome)
        elif launched.lost and self._stop.is_set():
            return  # left open: whoever takes the study up again measures the Point, and tells it once
        else:
            self._proposer.lost(proposal)

    def _value(self, run: Launched) -> float:
        return value_of(run, self._request.objective, self._launched)

    def _ranking(self) -> list[Point]:
        """Points that were measured as faster than the user's own command, best first."""
        values = {
            run.point: self._value(run)
            for run in self._launched
            if isinstance(run.outcome, Measurement) and run.kind in (TrialKind.BASELINE, TrialKind.SEARCH)
        }
        own = self._prepared.space.baseline
        faster = [p for p in values if p != own and values[p] > values[own] and not self._left_out(p)]
        return sorted(faster, key=lambda p: -values[p])

    def _searched(self) -> int:
        """Points that the search is done with, the user's own included; one that was lost and may be repeated is still owed."""
        attempts: dict[Point, list[Launched]] = {}
        for run in self._launched:
            if run.kind in (TrialKind.BASELINE, TrialKind.SEARCH):
                attempts.setdefault(run.point, []).append(run)
        return sum(isinstance(runs[-1].outcome, Measurement) or not may_repeat(runs) for runs in attempts.values())

    def _time_for_another(self, *, fresh: bool = False) -> bool:
        """Whether one more Point fits into the time, with the confirmation behind it.

        Args:
            fresh: whether it needs a launch of its own.
        """
        if self._request.time_budget is None and self._deadline is None:
            return True
        inside = [run.wall_seconds for run in self._timed() if run.session is not None]
        return self._time_for(median(inside) if inside and not fresh else self._launch_seconds())

    def _timed(self) -> list[Launched]:
        """What was measured, with the seconds that it took."""
        return [
            run
            for run in self._launched
            if math.isfinite(run.wall_seconds) and run.kind is not TrialKind.ANCHOR and not run.not_tried
        ]

    def _launch_seconds(self) -> float:
        """What a launch takes; 0 while none was made."""
        own = [run.wall_seconds for run in self._timed() if run.session is None]
        return median(own) if own else 0.0

    def _time_for(self, seconds: float) -> bool:
        """Whether so many seconds fit into the time, with the confirmation behind them."""
        reserve = seconds + 2 * self._request.confirmations * self._launch_seconds()
        if self._deadline is not None and self._now() + reserve > self._deadline:
            return False
        budget = self._request.time_budget
        return budget is None or self._spent_before + self._now() - self._begin + reserve <= budget

    def _samples(self, point: Point, *, confirm: bool | None = None) -> list[LaunchSample]:
        """Launches of their own of a Point; what a session measured is no launch."""
        return [
            sample_of(run.outcome)
            for run in self._launched
            if run.point == point
            and isinstance(run.outcome, Measurement)
            and run.outcome.session is None
            and (confirm is None or (run.kind in AFTER_THE_CHOICE) is confirm)
        ]

    def _chosen_on(self, point: Point) -> list[LaunchSample]:
        """What the search saw of a Point: launches of its own, or what a session says at the level of such launches."""
        return self._samples(point, confirm=False) or [
            LaunchSample(comparable(run, self._launched), ())
            for run in self._launched
            if run.point == point and isinstance(run.outcome, Measurement) and run.kind is TrialKind.SEARCH
        ]

    def _verdict(self, winner: Point | None) -> dict[str, Any]:
        own = self._prepared.space.baseline
        if winner is None:
            others = [run for run in self._launched if run.point != own]
            nothing = bool(others) and not any(run.state is TrialState.MEASURED for run in others)
            decision = Decision.NOTHING_FITS if nothing else Decision.NO_MEANINGFUL_DIFFERENCE
            reason = (
                "no other Point could be measured"
                if nothing
                else "no Point was measured as faster than the user's own command"
            )
            judged = Judgement(decision, None, None, None, None, None, reason)
        else:
            again = self._samples(winner, confirm=True)
            judged = judge(
                self._samples(own),
                again,
                selected_on=self._samples(winner, confirm=False) if again else self._chosen_on(winner),
            )
        return self._verdict_json(judged, winner)

    def _verdict_json(self, judged: Judgement, winner: Point | None) -> dict[str, Any]:
        own = self._prepared.space.baseline
        baseline_launches = self._samples(own)
        best_number = None
        if winner is not None:
            of_winner = [run for run in self._launched if run.point == winner and isinstance(run.outcome, Measurement)]
            best_number = of_winner[-1].number
        hook = self._hook_gain(winner)
        return {
            "decision": judged.decision.value,
            "gain": judged.gain,
            "hook_gain": hook,
            "interval": [judged.interval.low, judged.interval.high] if judged.interval else None,
            "launches": len(baseline_launches) + (len(self._samples(winner)) if winner else 0),
            "equivalent": {
                "config": self._config_differs_only_in_knobs(winner),
                "gradient": None if winner is None else gradient_equal(self._launched, winner, self._prepared.config),
                "trajectory": None,
            },
            "memory": self._memory_json(winner),
            "cpu_stolen": self._theft(winner),
            "reason": judged.reason,
            "best_number": best_number,
            "best_throughput": judged.best_throughput,
            "best_range": [judged.best_range.low, judged.best_range.high] if judged.best_range else None,
            "launch_noise": judged.launch_noise,
            "refused": self._proposer.refused_before + len(self._proposer.refused),
        }

    def _memory_json(self, winner: Point | None) -> dict[str, Any]:
        """What both took with every trajectory as long as the job allows, and how many were left out for it."""
        shown = {"baseline": self._prepared.space.baseline, "best": winner}
        checks = {name: None if point is None else self._checks.get(point) for name, point in shown.items()}
        return {
            **{name: None if check is None else check.to_json() for name, check in checks.items()},
            "left_out": sum(self._left_out(point) for point in self._checks),
            "slope": None if winner is None else self._slope(winner),
        }

    def _slope(self, winner: Point) -> float | None:
        """GiB a step by which the memory of the best Point still grew in one of its confirming launches; 0: in none."""
        found = [
            slope([step.memory_gb for step in run.outcome.counted if step.memory_gb is not None])
            for run in self._launched
            if run.point == winner and run.kind is TrialKind.CONFIRM and isinstance(run.outcome, Measurement)
        ]
        return max((grown for grown in found if grown is not None), default=None)

    def _theft(self, winner: Point | None) -> list[float] | None:
        """Least and most of the CPU time that the hypervisor took in the launches of both that decide; None: not worth a word."""
        deciding = (self._prepared.space.baseline, winner)
        shares = [
            told_theft(run.outcome.echo)
            for run in self._launched
            if run.point in deciding and isinstance(run.outcome, Measurement) and run.outcome.session is None
        ]
        return [min(shares), max(shares)] if any(shares) else None

    def _hook_gain(self, winner: Point | None) -> float | None:
        """What the generation poll alone is worth, where the winner uses the hook and it was measured alone."""
        own = self._prepared.space.baseline
        if winner is None or winner.as_dict().get(keys.FAST_POLL) is not True:
            return None
        alone = Point.of({**own.as_dict(), keys.FAST_POLL: True})
        with_hook, without = self._chosen_on(alone), self._samples(own)
        return with_hook[0].throughput / without[0].throughput - 1 if with_hook and without else None

    def _config_differs_only_in_knobs(self, winner: Point | None) -> bool | None:
        """Part (a) of equivalence: both configurations composed, and every key that differs is an allowed knob's."""
        if winner is None:
            return None
        composed = self._compose(winner)
        if isinstance(composed, Refusal):
            return False
        ours = self._prepared.config
        differing = {key for key in {*ours, *composed} if ours.get(key) != composed.get(key)}
        return differing <= self._prepared.tunable_keys

    def _failed_verdict(self) -> dict[str, Any]:
        failure = self._launched[-1].outcome
        text = (
            f"{failure.failure_class.value} in {failure.phase.value}: {failure.evidence}"
            if isinstance(failure, Failure)
            else ""
        )
        reason = (
            "stopped before the user's own command was measured"
            if self.stopped
            else f"the user's own command failed. {text}"
        )
        judged = Judgement(Decision.BASELINE_FAILED, None, None, None, None, None, reason)
        return self._verdict_json(judged, None)

    def _close(self, state: str, verdict: Mapping[str, Any]) -> Mapping[str, Any]:
        self._persist.insist("the verdict", lambda: self._store.set_verdict(self._study_id, verdict))
        self._persist.insist("the verdict", lambda: self._store.set_study_state(self._study_id, state))
        return verdict


def value_of(run: Launched, objective: Objective, launched: Sequence[Launched]) -> float:
    """What makes a measured launch better, the larger the better.

    Args:
        launched: the launches of its study, which say how its session compares with launches of their own.
    """
    if objective is Objective.ACTOR_MFU and isinstance(run.outcome, Measurement):
        return run.outcome.mfu or 0.0
    return comparable(run, launched)


def label_of(number: int) -> str:
    """The short name of a trial."""
    return f"t{number:03d}"


def sample_of(measurement: Measurement) -> LaunchSample:
    """The launch as the verdict sees it."""
    steps = tuple((s.tokens or 0) / s.seconds / measurement.world_size for s in measurement.counted)
    return LaunchSample(measurement.throughput, steps)
