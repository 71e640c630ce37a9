"""`autotune run`: tune one training command."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from autotune.cli import console as terminal
from autotune.cli import options
from autotune.cli.pairs import pairs
from autotune.cli.progress import Progress
from autotune.cli.setup import run_setup
from autotune.cli.storage import DEFAULT_STORAGE
from autotune.launch import Launch
from autotune.measure.job_record import await_orphans
from autotune.measure.runner import Limits
from autotune.store.records import StudyRecord
from autotune.store.store import Store
from autotune.tuner import wording as words
from autotune.tuner.demo import DEMO_SPACE, demo_request
from autotune.tuner.execute import Outputs, StudyJob, check_places
from autotune.tuner.persist import told
from autotune.tuner.prepare import Prepared, launch_environment, open_composer, prepare, read_script
from autotune.tuner.request import Objective, RewardCalls, RunnerName, RunRequest, SamplerName
from autotune.tuner.sessions import plan_of
from autotune.values import AutotuneError, BadInput

ORPHAN_SECONDS = 60.0
"""How long a study waits for the launch of a tuner that was killed to end; its supervisor needs 45 s at most."""


def run(
    script: Annotated[
        Path | None, typer.Argument(help="A bash script (or YAML of overrides) that launches verl.", show_default=False)
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Tune real verl on the CPU with a tiny model; no GPU, no script.")
    ] = False,
    gpus: options.GpusOption = None,
    space: options.SpaceOption = None,
    trials: options.TrialsOption = None,
    confirmations: options.ConfirmationsOption = None,
    time_budget: Annotated[
        str | None, typer.Option(help="Time for everything, such as 90m or 6h.", show_default="none")
    ] = None,
    objective: options.ObjectiveOption = Objective.THROUGHPUT,
    sampler: options.SamplerOption = SamplerName.TPE,
    runner: options.RunnerOption = RunnerName.AUTO,
    reward: options.RewardOption = RewardCalls.REPLAY,
    allow: options.AllowOption = None,
    no_hooks: options.NoHooksOption = False,
    storage: Annotated[str, typer.Option(help="Database URL of the study.")] = DEFAULT_STORAGE,
    study: Annotated[str | None, typer.Option(help="Name of the study.", show_default="script and time")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for best.sh, the report and the logs.", show_default="autotune-out/STUDY"),
    ] = None,
    python: options.PythonOption = None,
    set_: options.SetOption = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable for the script and for verl.")
    ] = None,
    setup: options.SetupOption = None,
    seed: options.SeedOption = 0,
    steps: options.StepsOption = None,
    startup_timeout: options.StartupTimeoutOption = 1800.0,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for GPUs that are busy; without it they are refused.")
    ] = False,
    yes: options.YesOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, show what would run, launch and write nothing.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Finds the fastest settings for a verl training command and writes a command that is ready to run."""
    try:
        overrides, variables = pairs(set_, "--set"), pairs(env, "--env")
        if demo:
            if script is not None:
                raise BadInput("--demo brings its own script; leave SCRIPT away, or leave --demo away")
        else:
            script = _script(script)
        name = (
            study
            or f"{'demo' if demo or script is None else _name_of(script)}-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}"
        )
        folder = out or Path("autotune-out") / name
        request = RunRequest(
            script=script or folder / "demo" / "demo.sh",
            out=folder,
            storage=storage,
            study=name,
            space=space or (DEMO_SPACE if demo else "grpo_fsdp_vllm"),
            gpus=gpus,
            python=python or (sys.executable if demo else None),
            trials=trials or 30,
            confirmations=2 if confirmations is None else confirmations,
            time_budget=None if time_budget is None else options.seconds_of(time_budget),
            objective=objective,
            sampler=sampler,
            runner=runner,
            reward=reward,
            allow=options.allowed(allow),
            hooks=not no_hooks,
            seed=seed,
            set_overrides=overrides,
            env=variables,
            setup=setup,
            setup_env=run_setup(setup, variables, yes=yes, dry_run=dry_run),
            plan=options.step_plan(steps),
            limits=Limits(startup=startup_timeout),
            wait=wait,
        )
        check_places(request)
        if demo:
            request = demo_request(request, trials=trials, confirmations=confirmations, steps=steps, dry_run=dry_run)
        status = tune(request, dry_run=dry_run, as_json=as_json)
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    except AutotuneError as error:
        terminal.refuse(str(error), status=terminal.RUN_FAILED, as_json=as_json, code="RUN_FAILED")
    except OSError as error:
        known = told(error)
        if known is None:
            raise
        terminal.refuse(str(known), status=terminal.RUN_FAILED, as_json=as_json, code="RUN_FAILED")
    raise typer.Exit(status)


def tune(request: RunRequest, *, dry_run: bool, as_json: bool, resumed: StudyRecord | None = None) -> int:
    """Runs a study, new or taken up again, to its end; returns the exit status.

    Raises:
        AutotuneError: with what is wrong.
    """
    if not dry_run:
        await_orphans(ORPHAN_SECONDS, say=lambda text: terminal.err.print(f"[yellow]note[/] {escape(text)}"))
    launch = read_script(request)
    env = launch_environment(request, launch)
    composer, python = open_composer(request, launch, env)
    with composer:
        prepared = prepare(request, composer, launch, python, env)
        if not as_json:
            _explain(prepared, launch, request.setup, details=dry_run)
        if dry_run:
            if as_json:
                terminal.print_json(dry_run_json(prepared))
            return terminal.OK
        from autotune.dashboard.report import write_report  # here: a dry run needs no pages

        shown = terminal.err if as_json else terminal.out
        with Progress(shown) as progress:
            presses = 0

            def interrupted(signum: int, frame: FrameType | None) -> None:
                nonlocal presses
                presses += 1
                now = presses > 1 or signum == signal.SIGTERM
                progress.said(
                    "stopping now and cleaning up" if now else "stopping after this step; press again to stop at once"
                )
                job.stop(now=now)

            try:
                job = StudyJob(prepared, composer, progress, resumed=resumed)
            except KeyboardInterrupt:  # while it waits for GPUs; no study has begun
                return terminal.INTERRUPTED
            previous = {sig: signal.signal(sig, interrupted) for sig in (signal.SIGINT, signal.SIGTERM)}
            try:
                outputs = job.run()
                with closing(Store.open(request.storage)) as store:
                    report = write_report(store, outputs.study, request.out)
                outputs = replace(outputs, files=(*outputs.files, report))
            finally:
                for sig, handler in previous.items():
                    signal.signal(sig, handler)
        if as_json:
            terminal.print_json(outputs.shown)
        else:
            _conclude(outputs)
        return _status(outputs)


def _status(outputs: Outputs) -> int:
    if outputs.stopped:
        return terminal.INTERRUPTED
    return terminal.RUN_FAILED if outputs.verdict["decision"] == "baseline_failed" else terminal.OK


def _explain(prepared: Prepared, launch: Launch, setup: str | None, *, details: bool) -> None:
    console = terminal.out
    request, space = prepared.request, prepared.space
    versions = ", ".join(f"{name} {version}" for name, version in prepared.stack.versions().items())
    console.print(f"[bold]{escape(str(request.script))}[/]: {escape(prepared.job.label)}")
    console.print(f"interpreter {escape(prepared.python)} ({escape(versions)})", style="dim")
    skipped = launch.not_executed
    if skipped:
        console.print(f"{len(skipped)} lines of the script are not executed (autotune launches verl itself):")
        for line, text in skipped if details else skipped[:6]:
            console.print(f"  line {line}: {escape(text)}", style="dim", overflow="ellipsis", no_wrap=True)
        if not details and len(skipped) > 6:
            console.print(f"  … and {len(skipped) - 6} more (--dry-run lists all)", style="dim")
    if setup:
        console.print(f"set-up command: {escape(setup)}")
    if not details:
        return
    for warning in prepared.warnings:
        console.print(f"[yellow]note[/] {escape(warning)}")
    table = Table(
        "knob",
        "yours",
        "tried",
        title=f"search space {request.space}: {space.size:,} combinations",
        title_justify="left",
    )
    own = space.baseline.as_dict()
    for dimension in space.dimensions:
        table.add_row(
            words.short_key(dimension.key),
            str(own[dimension.key]),
            " ".join(str(choice) for choice in dimension.choices),
        )
    console.print(table)
    for key, reason in space.fixed:
        console.print(f"  left as it is: {escape(words.short_key(key))} ({escape(reason)})", style="dim")
    console.print("First launches: the user's own command, then")
    for first in prepared.first:
        console.print(f"  {escape(words.changes(first.point.changes_from(space.baseline)))}  ({escape(first.reason)})")
    for sentence in plan_of(prepared):
        console.print(escape(sentence))
    console.print("Nothing was launched and nothing was written (--dry-run).")


def dry_run_json(prepared: Prepared) -> dict[str, Any]:
    """What `--dry-run --json` prints."""
    space = prepared.space
    return {
        "script": str(prepared.request.script),
        "workload": prepared.job.label,
        "fingerprint": prepared.job.fingerprint,
        "python": prepared.python,
        "versions": prepared.stack.versions(),
        "warnings": list(prepared.warnings),
        "not_executed": [{"line": line, "text": text} for line, text in prepared.launch.not_executed],
        "space": {dimension.key: list(dimension.choices) for dimension in space.dimensions},
        "fixed": dict(space.fixed),
        "baseline": space.baseline.as_dict(),
        "first": [{"point": first.point.as_dict(), "reason": first.reason} for first in prepared.first],
        "plan": plan_of(prepared),
        "trials": prepared.request.trials,
        "confirmations": prepared.request.confirmations,
    }


def _conclude(outputs: Outputs) -> None:
    console = terminal.out
    console.print()
    badge = f"{terminal.SIMULATED} " if outputs.shown["simulated"] else ""
    console.print(f"{badge}[bold]{escape(words.verdict(outputs.verdict))}[/]")
    hook = outputs.verdict.get("hook_gain")
    if hook is not None:
        console.print(f"Of that, the fast generation poll alone: {words.gain(hook)} (measured once).")
    for line in outputs.changed:
        console.print(f"  {escape(line)}")
    if outputs.verdict.get("best_range"):
        low, high = outputs.verdict["best_range"]
        console.print(
            f"One more launch of the best setting is expected at {words.number(low)} to {words.number(high)} tokens/s/GPU "
            f"(measured: {words.number(outputs.verdict['best_throughput'])})."
        )
    memory = outputs.verdict.get("memory") or {}
    if memory.get("baseline") or memory.get("best") or memory.get("slope"):
        console.print(escape(words.memory(outputs.verdict)))
    theft = words.theft(outputs.verdict)
    if theft is not None:
        console.print(theft)
    for path in outputs.files:
        console.print(f"  {escape(str(path))}", style="dim", soft_wrap=True)
    if outputs.stopped:
        console.print(
            f"Stopped on request; what was measured is kept (autotune show {escape(outputs.study)}). "
            f"Go on with it: autotune resume {escape(outputs.study)}"
        )


def _script(script: Path | None) -> Path:
    if script is not None:
        return script
    for candidate in (Path("autotune.yaml"),):
        if candidate.is_file():
            return candidate
    scripts = sorted(Path().glob("*.sh"))
    launches = [path for path in scripts if "verl" in path.read_text(encoding="utf-8", errors="replace")]
    if len(launches) == 1:
        return launches[0]
    found = ", ".join(str(path) for path in launches)
    raise BadInput(
        f"several scripts here launch verl ({found}); name one"
        if launches
        else "no script was named and none here launches verl; try: autotune run train.sh, or autotune run --demo"
    )


def _name_of(script: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", script.stem) or "study"
