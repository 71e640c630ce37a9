"""`autotune schedule`: what a node checks and tunes every night."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import typer
from rich.markup import escape
from rich.table import Table
from sqlalchemy.engine import make_url

from autotune.cli import console as terminal
from autotune.cli import options
from autotune.cli.pairs import pairs as named
from autotune.cli.setup import run_setup
from autotune.cli.storage import DEFAULT_STORAGE, absolute_storage
from autotune.measure.runner import Limits
from autotune.service import control, lock, registration
from autotune.service.registration import Registration
from autotune.service.systemd import SYSTEM_ENVIRONMENT, USER_ENVIRONMENT, Unit
from autotune.service.timing import Firing, Timetable
from autotune.store import schedules
from autotune.store.schedules import NightRecord, ScheduleRecord
from autotune.store.store import Store, usable_url
from autotune.tuner import wording as words
from autotune.tuner.request import Objective, RewardCalls, RunnerName, RunRequest, SamplerName
from autotune.values import AutotuneError, BadInput

LONGEST_NIGHT = timedelta(days=7)
SHOWN_RUNS, SHOWN_NIGHTS = 3, 5

app = typer.Typer(
    help="Checks and tunes jobs every night, and speaks up when one has become slower.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
NameArgument = Annotated[str, typer.Argument(help="Name of the schedule.")]
StorageOption = Annotated[str, typer.Option(help="Database URL of the schedules and their studies.")]


# -- what is registered ----------------------------------------------------------------------------------------------------


@app.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Letters, digits, dots, dashes and underscores.")],
    script: Annotated[Path, typer.Option(help="A bash script (or YAML of overrides) that launches verl.")],
    cron: Annotated[str, typer.Option(help='When it runs: five fields, such as "0 2 * * *".')],
    window: Annotated[str, typer.Option(help="Between which times it may run, such as 02:00-06:00 or 22:30-05:00.")],
    tz: Annotated[
        str | None, typer.Option(help="Time zone of both, such as Europe/Berlin.", show_default="the system's")
    ] = None,
    gpus: options.GpusOption = None,
    pairs: Annotated[
        int, typer.Option(help="Pairs of your command and the best setting that every night measures first.")
    ] = 5,
    space: options.SpaceOption = None,
    trials: options.TrialsOption = None,
    confirmations: options.ConfirmationsOption = None,
    objective: options.ObjectiveOption = Objective.THROUGHPUT,
    sampler: options.SamplerOption = SamplerName.TPE,
    runner: options.RunnerOption = RunnerName.AUTO,
    reward: options.RewardOption = RewardCalls.REPLAY,
    allow: options.AllowOption = None,
    no_hooks: options.NoHooksOption = False,
    storage: StorageOption = DEFAULT_STORAGE,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the nights' results.", show_default="autotune-out/NAME")
    ] = None,
    python: options.PythonOption = None,
    set_: options.SetOption = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            metavar="K=V|K",
            help="A variable for the script and for verl; without a value each night takes it from the service's environment.",
        ),
    ] = None,
    setup: options.SetupOption = None,
    seed: options.SeedOption = 0,
    steps: options.StepsOption = None,
    startup_timeout: options.StartupTimeoutOption = 1800.0,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Store it without finding out whether the command can run here.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask before --setup runs, now and every night.")
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Registers a job. Everything is checked before anything is stored."""
    with _refusing(as_json):
        registration.check_name(name)
        zone = tz or registration.local_zone(os.environ)
        timetable = Timetable(cron, window, zone)
        variables, from_service = _variables(env)
        _check_free(storage, name)
        if no_check and setup is not None and not yes:
            raise BadInput("--setup will be run in bash every night; confirm it with --yes")
        request = RunRequest(
            script=script,
            out=out or Path("autotune-out") / name,
            storage=storage,
            study=name,
            space=space or "grpo_fsdp_vllm",
            gpus=gpus,
            python=python,
            trials=trials or 30,
            confirmations=2 if confirmations is None else confirmations,
            objective=objective,
            sampler=sampler,
            runner=runner,
            reward=reward,
            allow=options.allowed(allow),
            hooks=not no_hooks,
            seed=seed,
            set_overrides=named(set_, "--set"),
            env=variables,
            setup=setup,
            plan=options.step_plan(steps),
            limits=Limits(startup=startup_timeout),
            wait=True,
        )
        registration.check_secrets(request)
        wanted = Registration(
            name=name,
            timetable=timetable,
            pairs=pairs,
            request=_with_setup(request, yes=yes, skipped=no_check),
            from_service=from_service,
        )
        registration.hash_of(script)
        label = None if no_check else wanted.checked(os.environ).job.label
        with closing(Store.open(storage)) as store:
            schedule = wanted.register(store)
            if as_json:
                terminal.print_json({"schedule": _schedule_json(schedule, _now())})
                return
            console = terminal.out
            console.print(f"[bold]{escape(name)}[/] is registered on {escape(schedule.host)}")
            console.print(f"  {escape(schedule.script_path)}: {escape(label or 'not checked (--no-check)')}")
            console.print(f"  cron {escape(cron)}, window {escape(window)}, {_zone_said(zone, tz)}")
            for firing in islice(timetable.after(_now()), 1):
                console.print(f"  next night {_moments(firing, zone)}")
            away = registration.missing_names(from_service, os.environ)
            if away:
                console.print(
                    f"  [yellow]note[/] not set here, so that the check went without: {escape(', '.join(away))}"
                )
            if from_service:
                console.print(
                    f"  from the service's environment every night: {escape(', '.join(from_service))} "
                    "(put them into its EnvironmentFile)"
                )
            console.print(f"  {escape(_service_said(store.url))}")


@app.command("list")
def list_(storage: StorageOption = DEFAULT_STORAGE, as_json: options.JsonOption = False) -> None:
    """Lists what is registered, and when it runs next."""
    with _opened(storage, as_json) as store:
        now, found = _now(), schedules.schedules(store)
        if as_json:
            terminal.print_json({"schedules": [_schedule_json(schedule, now) for schedule in found]})
            return
        if not found:
            terminal.out.print("No schedule is registered yet; add one with autotune schedule add")
            return
        table = Table("name", "cron", "window", "zone", "next (its zone)", "state", "last night", "host")
        for schedule in found:
            coming = _next(schedule, now)
            nights = schedules.nights(store, schedule.id, most=1)
            table.add_row(
                *map(
                    escape,
                    (
                        schedule.name,
                        schedule.cron,
                        schedule.window,
                        schedule.tz,
                        "-" if coming is None else _local(coming, schedule.tz),
                        schedule.state,
                        _outcome(nights[-1]) if nights else "-",
                        schedule.host,
                    ),
                )
            )
        terminal.out.print(table)
        terminal.out.print(_service_said(store.url), style="dim", markup=False)


@app.command("show")
def show(name: NameArgument, storage: StorageOption = DEFAULT_STORAGE, as_json: options.JsonOption = False) -> None:
    """Shows a schedule: when it runs, what is known as best, and how its last nights went."""
    with _opened(storage, as_json) as store:
        schedule, now = schedules.schedule(store, name), _now()
        runs = [] if schedule.state != "active" else list(islice(control.timetable(schedule).after(now), SHOWN_RUNS))
        nights = schedules.nights(store, schedule.id, most=SHOWN_NIGHTS)
        script = _script_state(schedule)
        if as_json:
            terminal.print_json(
                {
                    "schedule": _schedule_json(schedule, now),
                    "runs": [_firing_json(firing, schedule.tz) for firing in runs],
                    "script": script,
                    "reference": schedule.reference,
                    "request": dict(schedule.request),
                    "nights": [_night_json(night) for night in nights],
                    "service": lock.holder(store.url),
                }
            )
            return
        console = terminal.out
        console.print(f"[bold]{escape(schedule.name)}[/]: {schedule.state}, on {escape(schedule.host)}")
        console.print(
            escape(
                f"  cron {schedule.cron}, window {schedule.window}, {schedule.tz}; {schedule.pairs} pairs in every canary"
            )
        )
        console.print(f"  script {escape(schedule.script_path)}: {_script_said(schedule, script)}", soft_wrap=True)
        if schedule.state != "active":
            console.print(f"  paused: autotune schedule resume {escape(schedule.name)} goes on with it")
        for firing in runs:
            console.print(f"  next night {_moments(firing, schedule.tz)}")
        console.print(f"  best known: {escape(_reference_said(schedule))}", soft_wrap=True)
        for key, value in ((schedule.reference or {}).get("overrides") or {}).items():
            console.print(f"    {escape(str(key))}={escape(str(value))}", soft_wrap=True)
        console.print(f"  {escape(_service_said(store.url, schedule.host))}")
        if nights:
            console.print(_nights_table(nights))
        else:
            console.print("  no night yet")


@app.command("history")
def history(
    name: NameArgument,
    most: Annotated[int, typer.Option(min=1, max=1000, help="Nights shown at most, the newest ones.")] = 60,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: options.JsonOption = False,
) -> None:
    """Shows the nights of a schedule, oldest first."""
    with _opened(storage, as_json) as store:
        schedule = schedules.schedule(store, name)
        nights = schedules.nights(store, schedule.id, most=most)
        if as_json:
            terminal.print_json({"name": schedule.name, "nights": [_night_json(night) for night in nights]})
        elif nights:
            terminal.out.print(_nights_table(nights))
        else:
            terminal.out.print(f"{escape(schedule.name)} has had no night yet")


@app.command("pause")
def pause(name: NameArgument, storage: StorageOption = DEFAULT_STORAGE, as_json: options.JsonOption = False) -> None:
    """Plans no further night. One that runs goes on; autotune schedule stop ends it."""
    _set_state(name, "paused", storage, as_json)


@app.command("resume")
def resume(name: NameArgument, storage: StorageOption = DEFAULT_STORAGE, as_json: options.JsonOption = False) -> None:
    """Plans nights again."""
    _set_state(name, "active", storage, as_json)


@app.command("remove")
def remove(name: NameArgument, storage: StorageOption = DEFAULT_STORAGE, as_json: options.JsonOption = False) -> None:
    """Forgets a schedule and the history of its nights. Their studies stay."""
    with _opened(storage, as_json) as store:
        schedule = schedules.schedule(store, name)
        count = schedules.nights_page(store, schedule.id, size=1).total
        schedules.remove_schedule(store, schedule.id)
        if as_json:
            terminal.print_json({"removed": schedule.name, "nights": count})
        else:
            terminal.out.print(
                f"{escape(schedule.name)} is removed, with the history of {count} nights; their studies stay (autotune studies)"
            )


@app.command("accept")
def accept(name: NameArgument, storage: StorageOption = DEFAULT_STORAGE, as_json: options.JsonOption = False) -> None:
    """Takes the script as it is now, and its speed from now on, as the new normal."""
    with _opened(storage, as_json) as store:
        schedule = schedules.schedule(store, name)
        found = registration.accept(store, schedule, _now())
        changed = found != schedule.script_hash
        if as_json:
            shown = schedules.schedule(store, name)
            terminal.print_json({"schedule": _schedule_json(shown, _now()), "script_hash": found, "changed": changed})
            return
        what = "as it is now" if changed else "unchanged since it was registered"
        terminal.out.print(
            f"The script of {escape(schedule.name)}, {what}, is the new normal: nights from now on are compared with each other, "
            "and no longer with those before, which stay in the history.",
            soft_wrap=True,
        )
        if changed and (schedule.reference or {}).get("point"):
            terminal.out.print("The best setting that was found with the earlier script is not used any more.")


# -- nights ----------------------------------------------------------------------------------------------------------------


@app.command("run-now")
def run_now(
    name: NameArgument,
    for_: Annotated[
        str | None, typer.Option("--for", help="How long it may run, such as 2h.", show_default="as long as its window")
    ] = None,
    storage: StorageOption = DEFAULT_STORAGE,
    as_json: options.JsonOption = False,
) -> None:
    """Asks the service for a night right now."""
    with _opened(storage, as_json) as store:
        schedule = schedules.schedule(store, name)
        length = None if for_ is None else _length(for_)
        night = control.run_now(store, schedule, _now(), length=length)
        serving = lock.holder(store.url)
        if as_json:
            terminal.print_json({"night": _night_json(night), "service": serving})
            return
        until = _local(night.until, schedule.tz)
        terminal.out.print(f"A night of {escape(schedule.name)} is planned, until {until} ({escape(schedule.tz)})")
        if serving is None:
            terminal.out.print("no service runs: the night starts when `autotune serve` does", markup=False)


@app.command("stop")
def stop(name: NameArgument, storage: StorageOption = DEFAULT_STORAGE, as_json: options.JsonOption = False) -> None:
    """Ends the night that runs, after its step."""
    with _opened(storage, as_json) as store:
        schedule = schedules.schedule(store, name)
        night = control.stop_night(store, schedule)
        if as_json:
            terminal.print_json({"night": _night_json(night)})
        elif night.state.value == "running":
            terminal.out.print(f"The night of {escape(schedule.name)} ends after its step ({escape(night.slot)})")
        else:
            terminal.out.print(f"The night of {escape(schedule.name)} is {night.state.value}: {escape(night.reason)}")


# -- the service -----------------------------------------------------------------------------------------------------------


@app.command("notify")
def notify(
    test: Annotated[bool, typer.Option("--test", help="Send a test message to every address.")] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Shows where messages go, from the environment variable AUTOTUNE_NOTIFY."""
    # Imported here: no other command should wait for a hundred notification services.
    from autotune.service.notify import VARIABLE, Notifier, trial

    with _refusing(as_json):
        notifier = Notifier.from_environment(os.environ)
        if not notifier.addresses:
            raise BadInput(
                f"no address is set: put Apprise URLs into the environment variable {VARIABLE} "
                "(for the service: into its EnvironmentFile)"
            )
        if not test:
            if as_json:
                terminal.print_json({"addresses": [{"address": address} for address in notifier.addresses]})
            else:
                for address in notifier.addresses:
                    terminal.out.print(address, markup=False)
                terminal.out.print("autotune schedule notify --test sends a message to each", style="dim")
            return
        found = notifier.deliver(trial(socket.gethostname()))
        if as_json:
            terminal.print_json(
                {
                    "addresses": [
                        {"address": one.address, "sent": one.problem is None, "problem": one.problem} for one in found
                    ]
                }
            )
        else:
            for one in found:
                terminal.out.print(f"{one.address}: {one.problem or 'sent'}", markup=False, soft_wrap=True)
        if any(one.problem for one in found):
            raise typer.Exit(terminal.RUN_FAILED)


@app.command("export")
def export(
    systemd: Annotated[bool, typer.Option("--systemd", help="Write a systemd unit for autotune serve.")] = False,
    user: Annotated[bool, typer.Option("--user", help="A unit for systemctl --user, without root.")] = False,
    storage: StorageOption = DEFAULT_STORAGE,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the dashboard and the API.")] = options.PORT,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    allow_host: options.AllowHostOption = None,
    behind_proxy: options.BehindProxyOption = False,
    tls_cert: options.TlsCertOption = None,
    tls_key: options.TlsKeyOption = None,
    out: Annotated[Path | None, typer.Option(help="File to write.", show_default="print it")] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Writes what keeps the service running on a node."""
    with _refusing(as_json):
        if not systemd:
            raise BadInput("say what to export: --systemd")
        usable_url(storage)
        if make_url(storage).password is not None:
            raise BadInput(
                "--storage holds a password, which everybody could read in the unit: leave it away, and give it as PGPASSWORD in "
                f"{USER_ENVIRONMENT if user else SYSTEM_ENVIRONMENT}"
            )
        command = [os.path.abspath(sys.executable), "-m", "autotune.cli.main", "serve"]
        command += ["--storage", absolute_storage(storage), "--port", str(port)]
        command += [] if host is None else ["--host", host]
        for further in allow_host or []:
            command += ["--allow-host", further]
        command += ["--behind-proxy"] if behind_proxy else []
        for option, path in (("--tls-cert", tls_cert), ("--tls-key", tls_key)):
            command += [] if path is None else [option, os.path.abspath(path)]
        text = Unit(command, Path.cwd(), None if user else getpass.getuser()).text()
        if out is not None:
            try:
                out.write_text(text, encoding="utf-8")
            except OSError as error:
                raise BadInput(f"cannot write {out}: {error.strerror}") from error
        if as_json:
            terminal.print_json({"unit": text, "file": None if out is None else str(out.resolve())})
        elif out is None:
            sys.stdout.write(text)
        else:
            _explain_unit(out, user=user)


def _explain_unit(out: Path, *, user: bool) -> None:
    home = "~/.config/systemd/user" if user else "/etc/systemd/system"
    systemctl = "systemctl --user" if user else "sudo systemctl"
    secrets = USER_ENVIRONMENT.replace("%h", "~") if user else SYSTEM_ENVIRONMENT
    terminal.out.print(f"{out} is written. Then:", markup=False)
    terminal.out.print(f"  {'' if user else 'sudo '}cp {out} {home}/autotune.service", markup=False)
    terminal.out.print(f"  secrets, AUTOTUNE_NOTIFY among them, into {secrets} (chmod 600)", markup=False)
    terminal.out.print(f"  {systemctl} daemon-reload && {systemctl} enable --now autotune", markup=False)
    if user:
        terminal.out.print("  loginctl enable-linger keeps it running while nobody is logged in", markup=False)


# -- helpers ---------------------------------------------------------------------------------------------------------------


@contextmanager
def _refusing(as_json: bool) -> Iterator[None]:
    """Turns what is wrong into one sentence and an exit status."""
    try:
        yield
    except BadInput as error:
        terminal.refuse(str(error), as_json=as_json)
    except AutotuneError as error:
        terminal.refuse(str(error), status=terminal.RUN_FAILED, as_json=as_json, code="RUN_FAILED")


@contextmanager
def _opened(storage: str, as_json: bool) -> Iterator[Store]:
    """The store, which is never made by a command that needs a schedule to be there."""
    with _refusing(as_json):
        path = Store.missing_file(storage)
        if path is not None:
            raise BadInput(
                f"no schedule was added here yet: {path} does not exist. Add one with autotune schedule add, or name another "
                "--storage"
            )
        with closing(Store.open(storage)) as store:
            yield store


def _check_free(storage: str, name: str) -> None:
    """A name that is taken is refused before the command is checked, which takes its time."""
    usable_url(storage)
    if Store.missing_file(storage) is not None:
        return
    with closing(Store.open(storage)) as store:
        if any(schedule.name == name for schedule in schedules.schedules(store)):
            raise BadInput(
                f"there is a schedule named {name!r} already; remove it first (autotune schedule remove {name}), or choose "
                "another name"
            )


def _variables(given: list[str] | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Variables with their values, and the names of those whose values the service has."""
    bare = [item for item in given or [] if "=" not in item]
    for item in bare:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", item):
            raise BadInput(f"--env {item!r}: expected NAME=VALUE, or NAME alone for a variable of the service")
    valued = named([item for item in given or [] if "=" in item], "--env")
    return valued, tuple(dict.fromkeys(item for item in bare if item not in valued))


def _with_setup(request: RunRequest, *, yes: bool, skipped: bool) -> RunRequest:
    return replace(request, setup_env=run_setup(request.setup, dict(request.env), yes=yes, dry_run=skipped))


def _set_state(name: str, state: str, storage: str, as_json: bool) -> None:
    with _opened(storage, as_json) as store:
        schedule = schedules.schedule(store, name)
        schedules.change_schedule(store, schedule.id, state=state)
        shown = schedules.schedule(store, name)
        if as_json:
            terminal.print_json({"schedule": _schedule_json(shown, _now())})
            return
        coming = _next(shown, _now())
        when = "" if coming is None else f"; next night {_local(coming, shown.tz)} ({shown.tz})"
        terminal.out.print(f"{escape(name)} is {state}{escape(when)}")
        active = control.current_night(store, shown)
        if state == "paused" and active is not None:
            terminal.out.print(
                f"its night {escape(active.slot)} is {active.state.value} and goes on; autotune schedule stop {escape(name)} ends it"
            )


def _length(text: str) -> timedelta:
    seconds = options.seconds_of(text, "--for")
    if not 0 < seconds <= LONGEST_NIGHT.total_seconds():
        raise BadInput(f"--for {text!r}: a night takes more than nothing and at most {LONGEST_NIGHT.days} days")
    return timedelta(seconds=seconds)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _local(moment: datetime, tz: str) -> str:
    return f"{moment.astimezone(ZoneInfo(tz)):%Y-%m-%d %H:%M}"


def _next(schedule: ScheduleRecord, now: datetime) -> datetime | None:
    try:
        return control.next_run(schedule, now)
    except BadInput:
        return None  # registered on a host that knows its time zone; the others must be shown all the same


def _moments(firing: Firing, tz: str) -> str:
    until = firing.until.astimezone(ZoneInfo(tz))
    said = f"{_local(firing.at, tz)} until {until:%H:%M} ({firing.at:%Y-%m-%d %H:%M} UTC)"
    return said if firing.until > firing.at else f"{said}: the clocks change and leave no time, so that it is skipped"


def _zone_said(zone: str, asked: str | None) -> str:
    return escape(zone if asked is not None else f"{zone} (this system's zone; --tz names another one)")


def _service_said(url: str, host: str | None = None) -> str:
    if host not in (None, socket.gethostname()):
        return f"the schedule belongs to {host}; whether its service runs is seen there"
    pid = lock.holder(url)
    if pid is None:
        return "no service runs: nights start when `autotune serve` does"
    return f"the service runs (process {pid or 'unknown'})"


def _script_state(schedule: ScheduleRecord) -> dict[str, Any]:
    """`{"path", "registered", "now", "changed"}`; `now` and `changed` are null where the script cannot be read here."""
    try:
        now = registration.hash_of(Path(schedule.script_path))
    except BadInput:
        now = None
    changed = None if now is None else now != schedule.script_hash
    return {"path": schedule.script_path, "registered": schedule.script_hash, "now": now, "changed": changed}


def _script_said(schedule: ScheduleRecord, state: dict[str, Any]) -> str:
    if state["changed"] is None:
        return "[yellow]cannot be read here[/]"
    if not state["changed"]:
        return "as it was registered"
    return (
        "[yellow]has changed since it was registered[/]; its nights are not compared with earlier ones "
        f"(autotune schedule accept {escape(schedule.name)} takes it as the new normal)"
    )


def _reference_said(schedule: ScheduleRecord) -> str:
    reference = schedule.reference or {}
    if not reference.get("point"):
        return "your own command; no night has confirmed a better setting"
    return (
        f"{words.gain(reference.get('gain'))} over your command, found by {reference.get('study')} "
        f"in the night {reference.get('slot')}"
    )


def _outcome(night: NightRecord) -> str:
    decision = (night.verdict or {}).get("decision")
    said = night.state.value if decision is None else f"{night.state.value}, {decision}"
    return f"SIMULATED {said}" if night.simulated else said


def _nights_table(nights: list[NightRecord]) -> Table:
    table = Table("night", "state, verdict", "why", "study")
    for night in nights:
        why = " ".join(part for part in (night.reason, str((night.verdict or {}).get("text") or "")) if part)
        style = "red" if night.regressed or night.state.value == "failed" else None
        table.add_row(*map(escape, (night.slot, _outcome(night), why, night.study or "-")), style=style)
    return table


def _schedule_json(schedule: ScheduleRecord, now: datetime) -> dict[str, Any]:
    coming = _next(schedule, now)
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "tz": schedule.tz,
        "window": schedule.window,
        "next": None if coming is None else coming.isoformat(),
        "state": schedule.state,
        "host": schedule.host,
        "pairs": schedule.pairs,
        "script": schedule.script_path,
        "script_hash": schedule.script_hash,
    }


def _firing_json(firing: Firing, tz: str) -> dict[str, Any]:
    return {
        "slot": firing.slot,
        "at": firing.at.isoformat(),
        "until": firing.until.isoformat(),
        "local": firing.at.astimezone(ZoneInfo(tz)).isoformat(),
    }


def _night_json(night: NightRecord) -> dict[str, Any]:
    """A night without its lease: the token in it is for the process that runs the night alone."""

    def moment(value: datetime | None) -> str | None:
        return None if value is None else value.isoformat()

    return {
        "schedule": night.schedule,
        "slot": night.slot,
        "state": night.state.value,
        "reason": night.reason,
        "planned": moment(night.planned_at),
        "until": moment(night.until),
        "started": moment(night.started_at),
        "ended": moment(night.ended_at),
        "attempts": night.attempts,
        "study": night.study,
        "script_hash": night.script_hash,
        "simulated": night.simulated,
        "environment": dict(night.environment),
        "canary": night.canary,
        "verdict": night.verdict,
        "regressed": night.regressed,
    }
