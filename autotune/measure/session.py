"""One verl launch that waits for orders: starting it, asking it for one step at a time, ending it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from autotune.inside import wire
from autotune.measure.cold import ColdJob, ErrorWatch, host_echo, launch_environment, read_echo, watch_interference
from autotune.measure.gpu import GpuSampler
from autotune.measure.interference import InterferenceWatch, Thresholds
from autotune.measure.process import JobProcess, NotStarted, SupervisorLost
from autotune.measure.runner import Limits
from autotune.measure.watchdog import OOM_LINE, overdue
from autotune.redaction import redact
from autotune.values import Failure, FailureClass, KnobValue, Phase, StepRecord
from autotune.verl.failures import diagnose, diagnose_file
from autotune.verl.live import EngineSeat
from autotune.verl.loads import DeviceMemory
from autotune.verl.metrics import finite_numbers, step_record

Work: TypeAlias = Literal["whole", "frozen", "generation", "longest"]
WHOLE: Work = "whole"
FROZEN: Work = "frozen"
"""Training alone, on the trajectories of the session's first step."""
GENERATION: Work = "generation"
"""Generation alone."""
LONGEST: Work = "longest"
"""Training alone, on those trajectories made as long as the job allows: for its memory, never for its seconds."""
Reward: TypeAlias = Literal["live", "replay", "record"]
LIVE: Reward = "live"
"""The user's reward is called."""
REPLAY: Reward = "replay"
"""It is not: every trajectory waits as long as the recorded one did, and gets its score."""
RECORD: Reward = "record"
"""It is called, and score and seconds of every trajectory are kept for `REPLAY`."""
OTHERS = Thresholds().others
PLENTY = 1_000_000
"""Training steps that the launch is given; it ends when it is told to."""
_POLL = 0.25
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class SessionStep:
    """What one ordered step was."""

    record: StepRecord
    """With the memory of the Point on its worst rank, and loss and gradient norm of every mini-batch among its metrics
    (`session/actor/loss/0`)."""
    engines: tuple[Mapping[str, Any], ...]
    """Of every replica: limits in effect, and what its scheduler did since they were set."""
    trainers: tuple[Mapping[str, KnobValue], ...]
    """Of every rank: the values that took effect in its phases, by knob key."""
    equal_work: bool
    """Whether responses have recorded lengths; else steps differ in their tokens."""
    poll_seconds: float | None
    reward_called_because: str | None = None
    """Why rewards were called in a step that was to replay them; None: they were replayed, or were to be called."""
    peak_bytes: int | None = None
    """Most that an allocator had reserved at this Point, on the rank where it was most; None: not told."""
    device: DeviceMemory | None = None
    """The tightest GPU; None: not known yet, or no GPU."""
    lengths: tuple[int, ...] = ()
    """Tokens of every trajectory that frozen steps train on, told once, with the step that made them; of a longest step, its
    own."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The session could not do the step."""

    failure: Failure
    survived: bool
    """False: the session is gone, or going."""
    in_generation: bool = False


class Session:
    """A running session. `open` first; after `lost` it can only be closed."""

    def __init__(self, job: ColdJob, overrides: Sequence[str], *, folder: Path, limits: Limits) -> None:
        """
        Args:
            overrides: Hydra arguments behind the user's that make the command a session with its engine.
            folder: where its own folder is made, for log, metrics and echo. It is never one that was there: the end of an
                older log would be taken for this session's.
        """
        self.id = secrets.token_hex(4)
        self.folder = folder / f"session-{self.id}"
        self.log = self.folder / "console.log"
        self.lost = False
        self.startup_seconds = 0.0
        self.seats: tuple[EngineSeat | None, ...] = ()
        self.started_at: Mapping[str, Any] = {}
        """Limits with which the first replica's engine was started."""
        self._job = job
        self._overrides = tuple(overrides)
        self._limits = limits
        self._process: JobProcess | None = None
        self._wire: wire.Wire | None = None
        self._listener: wire.Listener | None = None
        self._errors: ErrorWatch | None = None
        self._interference: InterferenceWatch | None = None
        self._orders = 0
        self._mark = 0
        self._steps = 0
        self._longest: float | None = None
        self._begin = time.monotonic()
        self.sampler = GpuSampler(job.gpus)

    def open(self, stopped: Callable[[], bool]) -> Failure | None:
        """Starts verl and waits until it asks for its first order; why it never did, with everything cleaned up.

        Args:
            stopped: whether the user wants an end of it, asked all the time.
        """
        self.folder.mkdir(parents=True)
        echo_dir = self.folder / "echo"
        echo_dir.mkdir(exist_ok=True)
        self._begin = time.monotonic()
        token = secrets.token_hex(16)
        try:
            self._process = JobProcess(hold=self._job.hold, patience=self._limits.terminate)
            leftovers = self._process.leftovers
            path = str(leftovers.private / "s")
            self._listener = wire.Listener(path, token)
            env = launch_environment(self._job, leftovers, self.folder / "metrics.jsonl", echo_dir)
            env.update({wire.SOCKET: path, wire.TOKEN: token})
            command = self._job.command(self._overrides, steps=PLENTY, run_dir=self.folder, ray_dir=leftovers.ray)
            self._process.start(command, env=env, cwd=self._job.cwd, log=self.log)
            self._interference = watch_interference(self._job, self._process)
            self._errors = ErrorWatch(self.log)
            failure = self._await_hello(stopped)
        except NotStarted as problem:
            failure = Failure(
                FailureClass.UNKNOWN, Phase.UNKNOWN, "Check the interpreter and the folder.", str(problem), False
            )
        except SupervisorLost as lost:
            failure = self._gone(str(lost))
        if failure is not None:
            self.close()
        return failure

    def _await_hello(self, stopped: Callable[[], bool]) -> Failure | None:
        assert self._listener is not None
        while True:
            try:
                found = self._listener.accept(_POLL)
            except wire.WireError as problem:
                found = None
                self._note(f"refused a connection: {problem}")
            if found is not None:
                self._wire, hello = found
                self._listener.close()
                engines = hello.get("engines") or [{}]
                self.seats = tuple(EngineSeat.of(facts) for facts in engines)
                self.started_at = engines[0]
                self.startup_seconds = time.monotonic() - self._begin
                return None
            ended = self._ended(stopped, since_progress=0.0)
            if ended is not None:
                return ended

    def step(
        self,
        work: Work,
        settings: Mapping[str, Any],
        *,
        stopped: Callable[[], bool],
        crowding: float = OTHERS,
        reward: Reward = LIVE,
        patience: float = 1.0,
    ) -> SessionStep | StepFailed:
        """Asks for one step and waits for it.

        Args:
            patience: times the usual time after which a step counts as hung, for one that has more to do than others.
            reward: what becomes of the user's reward; a frozen step calls none anyway. Where it cannot be replayed it is
                called, and the answer says why.
            crowding: share of the CPUs that other programs may take before the step is invalid (`StepPlan.crowding`).
        """
        assert self._wire is not None
        self._orders += 1
        self._mark = self.log.stat().st_size
        begin = time.monotonic()
        try:
            self._wire.send(
                {"type": "step", "id": self._orders, "work": work, "settings": dict(settings), "reward": reward}
            )
            while True:
                answer = self._wire.receive(_POLL)
                if answer is not None and answer.get("id") == self._orders:
                    break
                ended = self._ended(stopped, since_progress=(time.monotonic() - begin) / patience)
                if ended is not None:
                    self.lost = True
                    return StepFailed(ended, survived=False)
        except wire.WireClosed:
            return self._broken()
        except SupervisorLost as lost:
            self.lost = True
            return StepFailed(self._gone(str(lost)), survived=False)
        if self._errors is not None:
            self._errors.look()
            self._errors.progress()  # whatever was printed until here did not stop the session
        if answer["type"] == "failure":
            survived = bool(answer.get("survived"))
            self.lost = not survived
            return StepFailed(point_failure(answer), survived, in_generation=answer.get("phase") in ("gen", "settings"))
        seen = read_step(answer)
        if self._interference is not None:
            now = time.monotonic()
            disturbance = self._interference.between(
                now - seen.record.seconds, now, thresholds=Thresholds(others=crowding)
            )
            if self._steps:  # the first one settles, and never counts
                seen = replace(seen, record=replace(seen.record, invalid=disturbance))
        self._steps += 1
        self._longest = max(self._longest or 0.0, seen.record.seconds / patience)
        return seen

    def echo(self) -> dict[str, KnobValue]:
        """What the processes reported when they started, and the host meanwhile; values that are changed live are in the steps."""
        return {**read_echo(self.folder / "echo"), **host_echo(self._interference)}

    @property
    def steps(self) -> int:
        """Steps that were done."""
        return self._steps

    def close(self, *, now: bool = False) -> None:
        """Ends verl and everything of it: after the step that is running, or `now`. Calling it again does nothing."""
        self.lost = self.lost or now
        if self._wire is not None:
            if not self.lost:
                try:
                    self._wire.send({"type": "end"})
                except wire.WireClosed:
                    self.lost = True
            if self._process is not None and not self.lost:
                self._process.await_end(self._limits.exit)
            self._wire.close()
            self._wire = None
        self.lost = True
        if self._listener is not None:
            self._listener.close()
        if self._process is not None:
            self._process.stop(patience=self._limits.terminate)
            self._process = None
        self.sampler.close()
        if self._interference is not None:
            self._interference.close()
            self._interference = None

    # -- ends that nobody wanted -----------------------------------------------------------------------------------------

    def _ended(self, stopped: Callable[[], bool], *, since_progress: float) -> Failure | None:
        """Why the session is over, or has to be; None: it is not."""
        assert self._process is not None
        assert self._errors is not None
        if stopped():
            return INTERRUPTED
        exit_code = self._process.exit_code
        if exit_code is not None:
            return self._diagnosed(exit_code)
        self._errors.look()
        now = time.monotonic()
        ran_out = self._errors.out_of_memory
        if self._orders and self._job.world_size > 1 and ran_out is not None and now - ran_out > self._limits.after_oom:
            return self._rank_ran_out()
        reason = overdue(
            self._limits,
            since_start=now - self._begin,
            since_progress=since_progress,
            longest_step=self._longest,
            since_error=None if self._errors.since is None else now - self._errors.since,
        )
        if reason is None:
            return None
        found = diagnose_file(self.log, steps_seen=self._steps, ended_by="watchdog")
        remedy = "Look at the end of the log." if found is None else found.remedy
        if found is not None and found.failure_class is not FailureClass.UNKNOWN:
            return found
        return Failure(FailureClass.HANG_NO_PROGRESS, Phase.UNKNOWN, f"{remedy} Log: {self.log}", reason, False)

    def _rank_ran_out(self) -> Failure:
        """A rank ran out of memory in the order that is running, and the others wait for it in a collective."""
        with self.log.open("rb") as source:
            source.seek(self._mark)
            added = source.read().decode(errors="replace")
        found = diagnose(added.splitlines(), exit_code=1)
        if found is not None and found.failure_class is FailureClass.OOM_GPU:
            return found
        line = next((line for line in added.splitlines() if OOM_LINE.search(line)), "a rank ran out of GPU memory")
        remedy = "Choose smaller micro-batches or token budgets."
        return Failure(FailureClass.OOM_GPU, Phase.UNKNOWN, f"{remedy} Log: {self.log}", redact(line)[:500], False)

    def _broken(self) -> StepFailed:
        """The line broke in the middle of a step: verl is dying, and its log says of what."""
        self.lost = True
        assert self._process is not None
        try:
            self._process.await_end(self._limits.terminate)
            exit_code = self._process.exit_code
        except SupervisorLost as lost:
            return StepFailed(self._gone(str(lost)), survived=False)
        return StepFailed(self._diagnosed(exit_code), survived=False)

    def _diagnosed(self, exit_code: int | None) -> Failure:
        found = diagnose_file(self.log, exit_code=1 if exit_code in (None, 0) else exit_code, steps_seen=0)
        if found is not None and found.evidence:
            return found
        return Failure(
            FailureClass.UNKNOWN if found is None else found.failure_class,
            Phase.UNKNOWN,
            f"Look at the end of the log. Log: {self.log}",
            f"the session ended after {self._steps} steps with exit status {exit_code}",
            False,
        )

    def _gone(self, why: str) -> Failure:
        return Failure(
            FailureClass.INTERRUPTED,
            Phase.UNKNOWN,
            "Nothing is left of the session; the Point is measured again in a new one.",
            why,
            True,
        )

    def _note(self, text: str) -> None:
        with self.log.open("a", encoding="utf-8") as sink:
            sink.write(f"autotune session: {text}\n")


INTERRUPTED = Failure(
    FailureClass.INTERRUPTED,
    Phase.UNKNOWN,
    "Continue the study; the Point is measured again.",
    "stopped by the user",
    True,
)
_PHASES = {phase.value: phase for phase in Phase}


def point_failure(answer: Mapping[str, Any]) -> Failure:
    """The failure of a Point, from the traceback with which a session answered."""
    text = str(answer.get("error", ""))
    named = _PHASES.get(str(answer.get("phase")), Phase.UNKNOWN)
    found = diagnose(text.splitlines(), exit_code=1)
    last = redact(next((line for line in reversed(text.splitlines()) if line.strip()), "no message"))
    if found is None or found.failure_class is FailureClass.UNKNOWN:
        return Failure(
            FailureClass.UNKNOWN,
            named,
            "No known failure: the quoted error ended the step; the session's log has all of it.",
            last[:500],
            False,
        )
    phase = found.phase if named is Phase.UNKNOWN else named
    return Failure(found.failure_class, phase, found.remedy, found.evidence, found.retryable)


def read_step(answer: Mapping[str, Any]) -> SessionStep:
    """A session's answer in our terms."""
    metrics = finite_numbers(answer["metrics"].items())
    for name, told in answer.get("updates", {}).items():
        for metric, values in told.items():
            metrics.update({f"session/{name}/{metric}/{place}": float(value) for place, value in enumerate(values)})
    workers = answer.get("workers", [])
    for worker in workers:
        metrics[f"session/memory_gb/{worker['rank']}"] = worker["reserved_bytes"] / _GIB
    record = step_record(int(answer["step"]), metrics)
    peak = max((worker["reserved_bytes"] / _GIB for worker in workers), default=None)
    return SessionStep(
        record=StepRecord(
            step=record.step,
            seconds=record.seconds,
            tokens=record.tokens,
            phases=record.phases,
            mfu=record.mfu,
            memory_gb=record.memory_gb if peak is None else peak,
            metrics=record.metrics,
        ),
        engines=tuple(answer.get("engines", ())),
        trainers=tuple(worker.get("values", {}) for worker in workers),
        equal_work=bool(answer.get("lengths_replayed")),
        poll_seconds=answer.get("poll_seconds"),
        reward_called_because=answer.get("reward_called_because"),
        peak_bytes=max((int(worker["reserved_bytes"]) for worker in workers), default=None),
        device=_device(answer.get("devices", ()), workers),
        lengths=tuple(int(length) for length in answer.get("sequence_lengths", ())),
    )


def _device(told: Sequence[Mapping[str, Any]], workers: Sequence[Mapping[str, Any]]) -> DeviceMemory | None:
    """The smallest device with the most in use on any of them: a Point must fit everywhere. What the trainer holds between two
    steps is the least of any rank, from which a peak has grown most."""
    known = [device for device in told if "device_bytes" in device]
    if not known or len(known) < len(told):
        return None
    return DeviceMemory(
        total=min(int(device["device_bytes"]) for device in known),
        outside=max(max(0, int(device["outside_bytes"])) for device in known),
        idle=min((int(worker.get("held_bytes", 0)) for worker in workers), default=0),
    )
