"""Registering a schedule: everything that can be wrong is found before anything is stored."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.redaction import MASK, redact, redact_json
from autotune.service.timing import Timetable
from autotune.store import schedules
from autotune.store.schedules import NAME_LENGTH, ScheduleRecord
from autotune.store.store import Store
from autotune.tuner.request import RunRequest
from autotune.values import BadInput

if TYPE_CHECKING:
    from autotune.tuner.prepare import Prepared

FEWEST_PAIRS, MOST_PAIRS = 2, 100
"""Of a canary: below two there is no spread, and beyond a hundred no time for anything else."""
_LOCAL_TIME = Path("/etc/localtime")


@dataclass(frozen=True, slots=True)
class Registration:
    """What a person asks for with `autotune schedule add`."""

    name: str
    timetable: Timetable
    pairs: int
    request: RunRequest
    from_service: tuple[str, ...] = ()
    """Names of variables whose values each night takes from the service's environment; they are never stored."""

    def __post_init__(self) -> None:
        """
        Raises:
            BadInput: the name or the pairs cannot be used, or a value that would be stored is a secret.
        """
        check_name(self.name)
        if not FEWEST_PAIRS <= self.pairs <= MOST_PAIRS:
            raise BadInput(f"--pairs {self.pairs}: a canary measures {FEWEST_PAIRS} to {MOST_PAIRS} pairs")
        check_secrets(self.request)

    def stored(self) -> dict[str, Any]:
        """The request as it is stored: secrets are not in it."""
        shown = self.request.to_json()
        shown["env"] = {**shown["env"], **dict.fromkeys(self.from_service, MASK)}
        kept: dict[str, Any] = redact_json(json.loads(json.dumps(shown)))
        return kept

    def checked(self, environment: Mapping[str, str]) -> Prepared:
        """Finds out whether a night could begin, as `autotune run --dry-run` does; launches and writes nothing.

        Args:
            environment: of this process, for the variables that nights take from the service's.

        Raises:
            BadInput: with one clear sentence for whatever is wrong first.
        """
        # Here: pausing a schedule, or listing them, prepares nothing.
        from autotune.tuner.execute import check_places
        from autotune.tuner.prepare import launch_environment, open_composer, prepare, read_script

        known = {name: environment[name] for name in self.from_service if name in environment}
        request = replace(self.request, env={**self.request.env, **known})
        check_places(request)
        launch = read_script(request)
        env = launch_environment(request, launch)
        composer, python = open_composer(request, launch, env)
        with composer:
            return prepare(request, composer, launch, python, env)

    def register(self, store: Store) -> ScheduleRecord:
        """Stores it for this node.

        Raises:
            BadInput: there is a schedule of that name, or the script cannot be read.
        """
        script = self.request.script.resolve()
        return schedules.add_schedule(
            store,
            name=self.name,
            host=socket.gethostname(),
            cron=self.timetable.cron,
            tz=self.timetable.tz,
            window=self.timetable.window,
            pairs=self.pairs,
            script_path=str(script),
            script_hash=hash_of(script),
            request=self.stored(),
        )


def check_name(name: str) -> None:
    """
    Raises:
        BadInput: it cannot name a schedule, its studies and its folder.
    """
    if not re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_LENGTH - 1}}}", name):
        raise BadInput(
            f"{name[:NAME_LENGTH]!r} cannot name a schedule: up to {NAME_LENGTH} letters, digits, dots, dashes and underscores, "
            "the first of them a letter or a digit"
        )


def check_secrets(request: RunRequest) -> None:
    """Keeps secrets out of the database: masked, they would be missing in the night that needs them.

    Raises:
        BadInput: a value of the request looks like one; the message does not show it.
    """
    for name, value in request.env.items():
        if _secret(name, value):
            raise BadInput(
                f"the value of {name} looks like a secret, and secrets are not stored: write {name}=… into the EnvironmentFile of "
                f"the service, and give --env {name} without a value here"
            )
    for key, value in request.set_overrides.items():
        if _secret(key, value):
            raise BadInput(
                f"the value of --set {key} looks like a secret, and secrets are not stored: have the script read it from a "
                f"variable, write that into the EnvironmentFile of the service, and give its name with --env NAME here"
            )
    if request.setup is not None and redact(request.setup) != request.setup:
        raise BadInput(
            "--setup holds what looks like a secret, and secrets are not stored: have the command source a file, or read a variable "
            "that you write into the EnvironmentFile of the service"
        )
    shown = {name: value for name, value in request.to_json().items() if name not in ("env", "set_overrides", "setup")}
    for name, text in _texts(shown):
        if redact(text) != text:
            raise BadInput(f"{name} holds what looks like a secret, and secrets are not stored; choose another one")


def hash_of(script: Path) -> str:
    """SHA-256 of a script's bytes.

    Raises:
        BadInput: it cannot be read.
    """
    try:
        return hashlib.sha256(script.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(f"{script} cannot be read: {error.strerror}") from error


def accept(store: Store, schedule: ScheduleRecord, now: datetime) -> str:
    """Takes the script as it is now, and how fast it runs from now on, as the new normal; returns its SHA-256.

    Nights from before are kept, and no longer compared with.

    Raises:
        BadInput: the script cannot be read, or the schedule was removed meanwhile.
    """
    found = hash_of(Path(schedule.script_path))
    schedules.change_schedule(
        store, schedule.id, script_hash=found, reference={**(schedule.reference or {}), "since": now.isoformat()}
    )
    return found


def local_zone(environment: Mapping[str, str], local_time: Path = _LOCAL_TIME) -> str:
    """IANA name of the system's time zone: TZ, else what /etc/localtime links to, else UTC."""
    named = environment.get("TZ", "").removeprefix(":")
    for name in (named, _zone_behind(local_time)):
        if name and _is_zone(name):
            return name
    return "UTC"


def missing_names(names: Collection[str], environment: Mapping[str, str]) -> list[str]:
    """Those of the variables that the environment does not have."""
    return sorted(name for name in names if name not in environment)


def _zone_behind(link: Path) -> str:
    _, found, name = os.path.realpath(link).partition("/zoneinfo/")
    return re.sub(r"^(posix|right)/", "", name) if found else ""


def _is_zone(name: str) -> bool:
    try:
        Timetable("0 2 * * *", "02:00-06:00", name)
    except BadInput:
        return False
    return True


def _secret(name: str, value: str) -> bool:
    assigned = f"{name}={value}"
    return MASK in value or redact(assigned) != assigned


def _texts(value: Any, name: str = "the request") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, name)
