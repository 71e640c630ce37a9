"""Why a verl run did not deliver, read from its log by the rules of `failure_rules`.

The first cause wins over its echoes on other ranks and over whatever dies with it. A line counts only when nothing shows that the run went on:
a later training step or verl's closing line makes it one of the many frightening lines of a healthy run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

from autotune.redaction import redact
from autotune.values import Failure, FailureClass, Phase
from autotune.verl.console import ConsoleReader, split_prefix
from autotune.verl.failure_rules import PHASE_FRAMES, RAISED, RULES, Rule, Weight
from autotune.verl.log_lines import LineScanner, matters
from autotune.verl.metrics import LoggedStep

EndedBy: TypeAlias = Literal["watchdog", "time_limit", "signal", "user"]
"""How the one who started the run ended it; None: it ended by itself."""

_EVIDENCE = 500
_MAX_MESSAGE = 4000
_EXCEPTION = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit))(?::\s|\Z)")
_MAY_BE_RAISED = re.compile(r"Error|Exception|error, ")
_OTHER_RULES = tuple(rule for rule in RULES if not rule.pattern.pattern.startswith(RAISED))
_TOTAL = re.compile(
    r"Total training steps: (?P<total>\d{1,12})|Training Progress: .{0,300}?\| *\d+/(?P<bar>\d{1,12}) \["
)
_NEW_RUN = re.compile(
    r"(?:[\w .:]{0,60}-- )?(?:Started a local Ray instance|TaskRunner hostname:|Connecting to existing Ray cluster)"
)
_WORKER = re.compile(r"\bpid[:=] ?(?P<pid>\d+)")
_ENGINE = re.compile(r"(?:EngineCore|VllmWorker|Worker)(?:[_.-]|\Z)")
"""Processes of vLLM's engine, as their lines begin; verl's own `WorkerDict` is none of them."""
_DRIVER = ("", "TaskRunner", "TaskRunnerV1", "main_task", "MainTaskRunner", "actor")


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A line that a rule matched."""

    rule: Rule | None
    """None: an exception that no rule knows."""
    position: int
    phase: Phase | None
    evidence: str
    groups: Mapping[str, str]

    @property
    def weight(self) -> Weight:
        return Weight.UNKNOWN if self.rule is None else self.rule.weight

    @property
    def failure_class(self) -> FailureClass:
        return FailureClass.UNKNOWN if self.rule is None else self.rule.failure_class


@lru_cache(maxsize=4096)
def _frame_phase(message: str) -> Phase | None:
    """The phase that a frame of a traceback or a Ray task name belongs to; the same frames come again and again."""
    return next((phase for pattern, phase in PHASE_FRAMES if pattern.search(message)), None)


class Diagnosis:
    """Reads a log line by line and keeps what may be the cause of its end; memory does not grow with the log."""

    def __init__(self) -> None:
        self.steps = 0
        """Step lines seen."""
        self.finished = False
        """Whether verl printed its closing line, or its last step."""
        self.planned_steps: int | None = None
        """Steps that verl said it would train, where it said so."""
        self._position = 0
        self._phase: Phase | None = None
        self._sightings: dict[str, _Sighting] = {}
        self._worker: str | None = None
        self._engine_raised: str | None = None
        self._in_traceback = False

    def feed(self, event: LoggedStep | str) -> None:
        """Takes the next step, or the next line that is no part of one."""
        if isinstance(event, LoggedStep):
            self.steps += 1
            self._forget()  # the run survived everything that stood before the step
            self.finished = self.planned_steps is not None and event.step >= self.planned_steps
        else:
            self._position += 1
            self._take(event[:_MAX_MESSAGE])

    def result(
        self,
        *,
        exit_code: int | None = None,
        steps_seen: int = 0,
        ended_by: EndedBy | None = None,
        last_line: str = "",
    ) -> Failure | None:
        """The failure, or None: finished well, or unfinished with nothing to explain. `last_line` is quoted where no line is decisive."""
        last_line = split_prefix(last_line)[1]
        chosen = self._chosen()
        well = exit_code == 0 or (exit_code is None and ended_by is None and self.finished)
        if well and (self.steps or steps_seen or self.finished):
            return None
        if ended_by is not None:
            if chosen is not None and chosen.weight is Weight.STOPPED:
                chosen = None  # the signal was the one that the caller tells of
            known = Weight.CAUSE if ended_by in ("user", "signal") else Weight.SUSPECT
            if chosen is None or chosen.weight < known:
                return self._ended(ended_by, chosen, self.steps or steps_seen, last_line)
        if chosen is not None:
            if ended_by == "watchdog" and chosen.failure_class is FailureClass.UNKNOWN:
                return self._hang(chosen, last_line)
            return self._failure(chosen)
        if exit_code is None or exit_code == 0:
            return None
        return _exited(exit_code, last_line)

    # -- reading ---------------------------------------------------------------------------------------------------------

    def _take(self, line: str) -> None:
        who, message = split_prefix(line)
        if not message:
            return
        if (total := _TOTAL.match(message)) is not None:
            self.planned_steps = int(total["total"] or total["bar"])
            return
        if "Final validation metrics" in message[:60]:
            self._forget()
            self.finished = True
            return
        if _NEW_RUN.match(message):
            self._forget()
            self.finished = False
            return
        self._hint(message)
        if message.startswith('File "'):
            self._in_traceback = True
            return
        for rule in RULES if _MAY_BE_RAISED.search(message) else _OTHER_RULES:
            if (found := rule.pattern.match(message)) is not None:
                self._see(rule, message, found.groupdict())
                return
        if "pid" in message and (worker := _WORKER.search(message)) is not None and "actor_died" in self._sightings:
            self._worker = self._worker or worker["pid"]
        if message.startswith("Traceback (most recent call last)"):
            self._in_traceback = True
        elif (self._in_traceback or who.split(".")[0] in _DRIVER) and _EXCEPTION.match(message):
            self._in_traceback = False
            if who in _DRIVER:
                self._see(None, message, {})
            elif _ENGINE.match(who) and self._engine_raised is None:
                self._engine_raised = message

    def _hint(self, message: str) -> None:
        """Takes the phase from a frame or a Ray task name. The deepest frame counts, but the reference model's log-probs go through the
        same functions as the actor's."""
        if "in " not in message and "ray::" not in message and "self." not in message and "start" not in message:
            return
        phase = _frame_phase(message)
        if phase is None or (phase is Phase.OLD_LOG_PROB and self._phase is Phase.REF):
            return
        if phase is Phase.GEN and self._phase is Phase.INIT_ROLLOUT and self.steps == 0:
            return
        self._phase = phase

    def _see(self, rule: Rule | None, message: str, groups: Mapping[str, str | None]) -> None:
        name = (
            "unknown"
            if rule is None
            else rule.failure_class.value + ("" if rule.failure_class is not FailureClass.UNKNOWN else rule.name)
        )
        phase = self._phase
        if rule is not None and rule.phase is not None:
            phase = phase if phase in rule.by_phase else rule.phase
        new = _Sighting(
            rule, self._position, phase, message[: _EVIDENCE * 2], {k: v for k, v in groups.items() if v is not None}
        )
        old = self._sightings.get(name)
        if rule is not None and rule.name == "actor_died":
            self._sightings.setdefault("actor_died", new)
        if old is None:
            self._sightings[name] = new
            return
        better = (
            rule is not None
            and old.rule is not None
            and (rule.weight, rule.detail) > (old.rule.weight, old.rule.detail)
        )
        said = new if better else old
        self._sightings[name] = _Sighting(
            said.rule, old.position, _known(old.phase) or _known(new.phase) or old.phase, said.evidence, said.groups
        )

    def _forget(self) -> None:
        self._sightings.clear()
        self._phase = None
        self._worker = None
        self._engine_raised = None
        self._in_traceback = False

    # -- judging ---------------------------------------------------------------------------------------------------------

    def _chosen(self) -> _Sighting | None:
        seen = sorted(self._sightings.values(), key=lambda sighting: sighting.position)
        for weight in (Weight.CAUSE,):
            if (first := next((s for s in seen if s.weight is weight), None)) is not None:
                return first
        stopped = next((s for s in seen if s.weight is Weight.STOPPED), None)
        suspect = next((s for s in seen if s.weight is Weight.SUSPECT), None)
        echo = next((s for s in seen if s.weight is Weight.ECHO), None)
        unknown = next((s for s in seen if s.weight is Weight.UNKNOWN), None)
        if stopped is not None:
            by_scheduler = stopped.rule is not None and stopped.rule.detail >= 2
            earlier = [
                s
                for s in (suspect, *(() if by_scheduler else (echo, unknown)))
                if s is not None and s.position < stopped.position
            ]
            return earlier[0] if earlier else stopped
        if suspect is not None:
            return suspect
        if echo is not None and unknown is not None and unknown.position < echo.position:
            return unknown
        return echo or unknown

    def _failure(self, sighting: _Sighting) -> Failure:
        rule = sighting.rule
        if rule is None:
            return Failure(
                FailureClass.UNKNOWN,
                _known(sighting.phase) or Phase.UNKNOWN,
                _UNKNOWN,
                _evidence(sighting.evidence),
                False,
            )
        phase = sighting.phase or Phase.UNKNOWN
        if rule.of_engine and self._engine_raised is not None:
            return Failure(rule.failure_class, phase, _ENGINE_RAISED, _evidence(self._engine_raised), rule.retryable)
        words = _Words(sighting.groups, self._worker)
        return Failure(
            failure_class=rule.failure_class,
            phase=phase,
            remedy=rule.by_phase.get(phase, rule.remedy).format_map(words),
            evidence=_evidence(sighting.evidence),
            retryable=rule.retryable and not _asked_for_too_much(sighting),
        )

    def _ended(self, ended_by: EndedBy, chosen: _Sighting | None, steps: int, last_line: str) -> Failure:
        if ended_by == "watchdog" or (ended_by == "time_limit" and not steps and chosen is None):
            return self._hang(chosen, last_line)
        if ended_by == "time_limit":
            remedy = "The run reached its time limit. That is no property of the settings: give it more time, or measure fewer steps."
        else:
            remedy = _STOPPED
        return Failure(
            FailureClass.INTERRUPTED,
            Phase.UNKNOWN,
            remedy,
            _evidence(chosen.evidence if chosen else last_line),
            True,
        )

    def _hang(self, chosen: _Sighting | None, last_line: str) -> Failure:
        phase = (_known(chosen.phase) if chosen is not None else None) or Phase.UNKNOWN
        remedy = _HANG
        if chosen is not None and chosen.rule is not None:
            remedy = chosen.rule.remedy.format_map(_Words(chosen.groups, self._worker))
        return Failure(
            FailureClass.HANG_NO_PROGRESS,
            phase,
            remedy,
            _evidence(chosen.evidence if chosen else last_line),
            False,
        )


_LOOK = "Read the end of its log, and the worker logs in /tmp/ray/session_latest/logs."
_STOPPED = "The run was stopped from outside. That is no property of the settings: run it again."
_UNKNOWN = f"No known failure: the quoted exception ended the run. {_LOOK}"
_ENGINE_RAISED = "vLLM's engine ended with the quoted exception, which no rule knows; the frames above it in the log say where it was raised."
_KILLED = "A process was killed with SIGKILL and the log does not say by whom. Check dmesg for the kernel's OOM killer and host memory during the run."
_HANG = (
    "No step finished in time and no error was printed. A first step may just be slow: allow more time, then take stacks (py-spy dump) of"
    " TaskRunner and WorkerDict before ending it; check that Ray has 3 CPUs for each GPU."
)


def _exited(exit_code: int, last_line: str) -> Failure:
    """The failure of a command of which only the exit status is known."""
    signal = -exit_code if exit_code < 0 else exit_code - 128
    evidence = _evidence(last_line)
    if signal in (2, 15):
        return Failure(FailureClass.INTERRUPTED, Phase.UNKNOWN, _STOPPED, evidence, True)
    remedy = (
        _KILLED
        if signal == 9
        else f"The command ended with exit status {exit_code} and its log names no known error. {_LOOK}"
    )
    return Failure(FailureClass.UNKNOWN, Phase.UNKNOWN, remedy, evidence, False)


class _Words(dict[str, str]):
    """What the templates of remedies may quote."""

    def __init__(self, groups: Mapping[str, str], worker: str | None) -> None:
        super().__init__(groups)
        self["worker"] = f" (worker-*-{worker}.err)" if worker else ""
        self["operation_name"] = f" {groups['operation']}" if "operation" in groups else ""
        if groups.get("size", "").isdigit() and len(groups["size"]) < 9:
            size = int(groups["size"])
            self["divisors"] = ", ".join(str(n) for n in range(1, min(size, 4096) + 1) if size % n == 0)

    def __missing__(self, name: str) -> str:
        return "?"


def _asked_for_too_much(sighting: _Sighting) -> bool:
    """A nearly empty GPU was not occupied by anybody: the share that was asked for is simply too large for it."""
    try:
        free, total = float(sighting.groups["free"]), float(sighting.groups["total"])
    except (KeyError, ValueError):
        return False
    return total > 0 and free / total >= 0.85


def _known(phase: Phase | None) -> Phase | None:
    return None if phase is Phase.UNKNOWN else phase


def _evidence(message: str) -> str:
    text = redact(" ".join(message.split()))
    return text if len(text) <= _EVIDENCE else text[: _EVIDENCE - 1] + "…"


def diagnose(
    lines: Iterable[str], *, exit_code: int | None = None, steps_seen: int = 0, ended_by: EndedBy | None = None
) -> Failure | None:
    """The failure that a log tells of, or None.

    `exit_code` is that of the command (None: not known), `steps_seen` the steps that other sources, such as the metrics file, have seen,
    `ended_by` how the run was ended from outside. From text alone a run without an error is unfinished, not hung.
    """
    diagnosis, reader, last_line = Diagnosis(), ConsoleReader(), ""
    for line in lines:
        if not line.isspace():
            last_line = line or last_line
        if reader.open or matters(line):
            for event in reader.feed(line.rstrip("\n")):
                diagnosis.feed(event)
    for step in reader.flush():
        diagnosis.feed(step)
    last_line = last_line.rstrip().rpartition("\r")[2]
    return diagnosis.result(exit_code=exit_code, steps_seen=steps_seen, ended_by=ended_by, last_line=last_line)


def diagnose_file(
    path: str | os.PathLike[str], *, exit_code: int | None = None, steps_seen: int = 0, ended_by: EndedBy | None = None
) -> Failure | None:
    """`diagnose` of a file of any size. Raises OSError where it cannot be read."""
    diagnosis, reader, scanner = Diagnosis(), ConsoleReader(), LineScanner()
    with open(path, "rb") as file:
        for line in scanner.lines_of(file):
            for event in reader.feed(line):
                diagnosis.feed(event)
            scanner.every_line = reader.open
    for step in reader.flush():
        diagnosis.feed(step)
    return diagnosis.result(exit_code=exit_code, steps_seen=steps_seen, ended_by=ended_by, last_line=scanner.last_line)
