"""A systemd unit that keeps `autotune serve` running on a node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.values import BadInput

SYSTEM_ENVIRONMENT = "/etc/autotune/autotune.env"
USER_ENVIRONMENT = "%h/.config/autotune/env"
"""Where secrets are kept, out of the database, the unit and every command line. A `%h` is the user's home."""

_PLAIN = re.compile(r"[A-Za-z0-9_@+=:,./-]+")


@dataclass(frozen=True, slots=True)
class Unit:
    """What the unit starts."""

    command: Sequence[str]
    """Absolute path of a program, and its arguments."""
    folder: Path
    """Absolute; where it is started."""
    user: str | None
    """Account of a system unit; None: a unit of the user's own manager (`systemctl --user`)."""

    def text(self) -> str:
        """The unit file.

        Raises:
            BadInput: an argument or the folder cannot stand in a unit file.
        """
        program, *arguments = self.command
        start = " ".join([_word(program, program=True), *(_word(argument) for argument in arguments)])
        network = "" if self.user is None else "Wants=network-online.target\nAfter=network-online.target\n"
        account = "" if self.user is None else f"User={_line('the account', self.user)}\n"
        environment = USER_ENVIRONMENT if self.user is None else SYSTEM_ENVIRONMENT
        # Locked memory is what RDMA registers. A user's own manager may not raise the limit, and would only complain.
        locked = "" if self.user is None else "LimitMEMLOCK=infinity\n"
        target = "default.target" if self.user is None else "multi-user.target"
        return f"""\
# Written by `autotune schedule export --systemd`.
[Unit]
Description=autotune: nightly checks and tuning of verl jobs
{network}StartLimitIntervalSec=600
StartLimitBurst=5

[Service]
Type=simple
{account}WorkingDirectory={_line("the folder", str(self.folder))}
# Secrets (AUTOTUNE_NOTIFY, HF_TOKEN, ...), one NAME=VALUE a line, readable by its owner alone. May be missing.
EnvironmentFile=-{environment}
Environment=PYTHONUNBUFFERED=1
ExecStart={start}

# The service alone is told to end; it ends its nights after the running step and cleans up after them.
KillMode=mixed
TimeoutStopSec=120
Restart=on-failure
RestartSec=10
# 2: its input is wrong, or another service has the database. Starting again would not help.
RestartPreventExitStatus=2
# One process of a training job that ran out of memory does not end the service.
OOMPolicy=continue

# Ray starts thousands of threads and opens tens of thousands of files.
TasksMax=infinity
LimitNOFILE=65536
{locked}
# What a GPU job needs stays: its devices, /tmp (Ray's sockets, the locks on the GPUs), memory that is written and executed.
NoNewPrivileges=yes
RestrictSUIDSGID=yes
LockPersonality=yes
PrivateTmp=no
UMask=0077

[Install]
WantedBy={target}
"""


def _word(text: str, *, program: bool = False) -> str:
    """One word of ExecStart, so that systemd passes exactly `text`."""
    _check("an argument", text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if program:
        # Variables are not looked up in the program's path, so that $$ would stay as it is.
        if not text.startswith("/"):
            raise BadInput(f"the program {text!r} has no absolute path; systemd wants one")
    else:
        escaped = escaped.replace("$", "$$")
    return escaped if _PLAIN.fullmatch(text) else f'"{escaped}"'


def _line(what: str, text: str) -> str:
    """A whole setting, which systemd reads to the end of the line."""
    _check(what, text)
    if text != text.strip() or text.endswith("\\"):
        raise BadInput(f"{what} {text!r} begins or ends with what systemd would not read; choose another one")
    return text.replace("%", "%%")


def _check(what: str, text: str) -> None:
    if not text or any(not character.isprintable() for character in text):
        raise BadInput(f"{what} {text!r} cannot stand in a systemd unit: it is empty or holds a control character")
