"""The systemd unit, read by systemd itself where it is there, and by its rules otherwise."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.service.systemd import Unit
from autotune.values import BadInput

COMMAND = [
    sys.executable,
    "-m",
    "autotune.cli.main",
    "serve",
    "--storage",
    "sqlite:////srv/tuning/trials.db",
    "--port",
    "8500",
]


def settings(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",), strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    return parser


def test_a_system_unit_runs_as_the_user_and_takes_secrets_from_a_file() -> None:
    unit = settings(Unit(COMMAND, Path("/srv/tuning"), "trainer").text())
    service = unit["Service"]
    assert service["User"] == "trainer"
    assert service["WorkingDirectory"] == "/srv/tuning"
    assert service["EnvironmentFile"] == "-/etc/autotune/autotune.env"
    assert service["ExecStart"].split() == COMMAND
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_a_user_unit_has_no_account_and_its_file_in_the_home() -> None:
    unit = settings(Unit(COMMAND, Path("/srv"), None).text())
    assert "User" not in unit["Service"]
    assert unit["Service"]["EnvironmentFile"] == "-%h/.config/autotune/env"
    assert unit["Install"]["WantedBy"] == "default.target"
    assert "network-online.target" not in unit["Unit"].values()


def test_the_service_ends_its_nights_itself_and_is_started_again_after_a_crash() -> None:
    service = settings(Unit(COMMAND, Path("/srv"), "trainer").text())["Service"]
    assert service["KillMode"] == "mixed"
    assert service["TimeoutStopSec"] == "120"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2"


def test_nothing_hides_what_a_gpu_job_needs() -> None:
    service = settings(Unit(COMMAND, Path("/srv"), "trainer").text())["Service"]
    assert service["PrivateTmp"] == "no"
    assert service["UMask"] == "0077"
    # Each of these takes the devices, Triton's compiled code, or the folders of results away; ProtectClock closes /dev, too.
    hiding = {
        "PrivateDevices",
        "DevicePolicy",
        "ProtectClock",
        "MemoryDenyWriteExecute",
        "ProtectSystem",
        "ProtectHome",
    }
    assert not hiding & set(service)


def test_arguments_reach_the_service_as_they_are() -> None:
    hostile = ["--a=100%n", "two words", "$HOME", "${X}", 'a"b', "back\\slash", ";", "'", "ü", "-x=y;z", "#no"]
    text = Unit(["/opt/my env/bin/python", *hostile], Path("/srv/50% off"), None).text()
    start = settings(text)["Service"]["ExecStart"]
    assert parsed(start) == ["/opt/my env/bin/python", *hostile]
    assert settings(text)["Service"]["WorkingDirectory"] == "/srv/50%% off"


def parsed(start: str) -> list[str]:
    """Words of ExecStart by the rules of systemd.service(5): quotes, backslashes, then %% and $$."""
    words: list[str] = []
    word, quoted, begun, index = "", False, False, 0
    while index < len(start):
        character = start[index]
        if character == '"':
            quoted, begun = not quoted, True
        elif character == "\\":
            index += 1
            word += start[index]
        elif character == " " and not quoted:
            if begun or word:
                words.append(word)
            word, begun = "", False
        else:
            word += character
        index += 1
    words.append(word)
    return [words[0].replace("%%", "%"), *(word.replace("%%", "%").replace("$$", "$") for word in words[1:])]


@pytest.mark.parametrize("bad", ["", "line\nExecStartPre=/bin/evil", "a\x00b", "tab\there", "\x1b[31m"])
def test_what_could_begin_another_line_is_refused(bad: str) -> None:
    with pytest.raises(BadInput, match="cannot stand in a systemd unit"):
        Unit([sys.executable, bad], Path("/srv"), None).text()
    if bad:
        with pytest.raises(BadInput, match="cannot stand in a systemd unit"):
            Unit([sys.executable], Path("/srv/" + bad), None).text()


def test_a_folder_that_systemd_would_read_otherwise_is_refused() -> None:
    for bad in ("/srv/x ", "/srv/x\\"):
        with pytest.raises(BadInput, match="begins or ends"):
            Unit([sys.executable], Path(bad), None).text()


def test_a_program_without_an_absolute_path_is_refused() -> None:
    with pytest.raises(BadInput, match="no absolute path"):
        Unit(["python"], Path("/srv"), None).text()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_itself_accepts_the_unit(tmp_path: Path) -> None:
    path = tmp_path / "autotune.service"
    path.write_text(Unit([*COMMAND, "--a=100%n", "$HOME x", ";"], tmp_path, "root").text())
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
