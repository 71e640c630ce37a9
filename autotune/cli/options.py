"""Options that decide a study, for every command that takes them, and what they come to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from autotune.measure.runner import StepPlan
from autotune.tuner.request import Objective, RewardCalls, RunnerName, SamplerName
from autotune.values import BadInput
from autotune.verl.knobs import Safety

PORT = 8500
"""Where the pages are unless something else is asked for."""
HostOption = Annotated[str, typer.Option(help="Address to listen on.")]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")]
AllowHostOption = Annotated[
    list[str] | None, typer.Option(help="A further name under which it answers.", show_default="none")
]
BehindProxyOption = Annotated[
    bool, typer.Option("--behind-proxy", help="A proxy in front of it speaks TLS and knows who may ask.")
]
TlsCertOption = Annotated[Path | None, typer.Option(help="Certificate chain (PEM).", show_default="none")]
TlsKeyOption = Annotated[Path | None, typer.Option(help="Private key (PEM).", show_default="none")]

GpusOption = Annotated[
    int | None,
    typer.Option(help="GPUs the job trains on; must agree with the script.", show_default="the script's"),
]
SpaceOption = Annotated[
    str | None, typer.Option(help="Search space: a shipped name or a YAML file.", show_default="grpo_fsdp_vllm")
]
TrialsOption = Annotated[
    int | None, typer.Option(min=1, help="Points to measure, the user's own included.", show_default="30")
]
ConfirmationsOption = Annotated[
    int | None,
    typer.Option(min=0, help="Launches of the user's command and of the best Point at the end.", show_default="2"),
]
ObjectiveOption = Annotated[Objective, typer.Option(help="What makes a Point better.")]
SamplerOption = Annotated[SamplerName, typer.Option(help="What proposes Points after the first ones.")]
RunnerOption = Annotated[
    RunnerName, typer.Option(help="auto: sessions that measure many Points in one launch, where the job allows it.")
]
RewardOption = Annotated[
    RewardCalls,
    typer.Option(
        help="What generation probes of a session do with your reward: call it, or replay what it took and gave."
    ),
]
AllowOption = Annotated[
    list[Safety] | None, typer.Option(help="Also tune knobs of this class (numeric).", show_default="neutral only")
]
NoHooksOption = Annotated[bool, typer.Option("--no-hooks", help="Do not try the fast generation poll.")]
PythonOption = Annotated[str | None, typer.Option(help="Interpreter that has verl.", show_default="the script's own")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A Hydra override on top of the script's.")
]
SetupOption = Annotated[str | None, typer.Option(help="Command run once in bash; what it exports reaches verl.")]
SeedOption = Annotated[int, typer.Option(help="Seed of the sampler.")]
StepsOption = Annotated[int | None, typer.Option(min=2, help="Counted steps per launch at least.", show_default="2")]
StartupTimeoutOption = Annotated[float, typer.Option(min=10, help="Seconds until the first step must be done.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before --setup runs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def allowed(given: list[Safety] | None) -> tuple[Safety, ...]:
    """The classes of knobs that are tuned.

    Raises:
        BadInput: `semantic` was asked for.
    """
    if given and Safety.SEMANTIC in given:
        raise BadInput(
            "--allow semantic: autotune never changes what the model learns; neutral and numeric are the classes it tunes"
        )
    return tuple(dict.fromkeys((Safety.NEUTRAL, *(given or []))))


def step_plan(steps: int | None) -> StepPlan:
    """How many steps are counted, where `--steps` asks for some or for none in particular."""
    return StepPlan(at_least=steps or 2, at_most=max(5, steps or 2))


def seconds_of(text: str, option: str = "--time-budget") -> float:
    """Seconds of a time such as `90m` or `6h`.

    Raises:
        BadInput: it is none.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|m|min|h|d)?", text.strip(), re.ASCII)
    if match is None:
        raise BadInput(f"{option} {text!r}: expected a number with s, m, h or d, such as 90m or 6h")
    return float(match[1]) * {"s": 1, None: 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[match[2]]
