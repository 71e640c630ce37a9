"""Looks through the programs that may stand between the shell and Python: nohup, srun, docker, ray, torchrun and their like."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autotune.launch.hydra_grammar import looks_like_override

_PYTHON = re.compile(r"python(\d(\.\d+)?)?\Z")
_LAUNCHERS = {"torchrun", "accelerate", "deepspeed", "torch_distributed_launcher"}
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_WRAPPERS = {
    "nohup", "env", "time", "srun", "docker", "podman", "nerdctl", "conda", "mamba", "micromamba", "ray", "stdbuf", "numactl", "taskset",
    "nice", "ionice", "chrt", "timeout", "setsid", "unbuffer", "sudo", "uv", "poetry", "pixi", "pdm", "pipenv", "nsys", "ncu", "singularity",
    "apptainer", "kubectl", "mpirun", "mpiexec", "ssh", "strace", "py-spy", "memray", "xvfb-run", "tini", "dumb-init", "catchsegv", "exec",
    "command", "flock", "systemd-run", "script", "parallel", "viztracer", "sbatch", "salloc", "enroot", "chpst", "coverage", "gdb",
}  # fmt: skip
_FLAG_ONLY = {"-u", "-O", "-OO", "-B", "-E", "-s", "-S", "-I", "-q", "-v", "-b", "-x", "-P"}
_GROUPS = (
    "actor_rollout_ref.",
    "data.",
    "trainer.",
    "algorithm.",
    "critic.",
    "reward_model.",
    "reward.",
    "ray_kwargs.",
)
MAX_WRAPPERS = 12


@dataclass(frozen=True, slots=True)
class Found:
    """A launch inside an argument list."""

    index: int
    """Index of the interpreter."""
    first: int
    """Index of the first argument after the entry point."""
    launcher: str
    entrypoint: str
    wrappers: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class Nested:
    """A shell that would run a script of its own."""

    kind: str
    """`text`: given as text; `file`: a path; `stdin`: from a heredoc."""
    text: str
    args: tuple[str, ...]
    wrappers: tuple[str, ...]
    env: Mapping[str, str]


def entrypoint_kind(entrypoint: str, arguments: Sequence[str] = ()) -> str | None:
    """What an entry point is.

    Returns:
        `ppo` (verl.trainer.main_ppo), `recipe` (another trainer with the same configuration), `async` (one-step-off or fully
        asynchronous), `own` (the user's program with verl's overrides), `other` (a verl program that autotune does not tune), or None
        (no training launch).
    """
    module = entrypoint.removesuffix(".py").lstrip("./").replace("/", ".")
    tail = module.rsplit(".", 1)[-1]
    ours = sum(argument.lstrip("+~").startswith(_GROUPS) for argument in arguments)
    if module.endswith("verl.trainer.main_ppo"):
        return "ppo"
    verl = re.search(r"(^|\.)(verl|recipe|recipes|verl_recipe)\.", module + ".") is not None
    if re.search(r"async|one_step_off", module) and (verl or ours >= 2):
        return "async"
    if "sft" in tail and (verl or ours):
        return "other"
    if re.search(r"verl\.trainer\.main_(eval|generation|generation_server)\Z", module):
        return "other"
    if re.search(r"(^|\.)verl\.trainer\.main_ppo_\w+\Z", module):
        return "recipe"
    if re.search(r"(^|\.)recipes?\.", module) and (tail.startswith(("main", "run", "train")) or ours >= 2):
        return "recipe"
    if ours >= 2:
        return "own"
    if re.search(r"(^|\.)verl\.(trainer|experimental)\.", module):
        return "other"
    return None


def find_launch(argv: Sequence[str]) -> Found | None:
    """The launch of a verl trainer in an argument list; None: there is none."""
    return _find(list(argv), 0, (), {}, ())


def nested_script(argv: Sequence[str]) -> Nested | None:
    """The script that the innermost shell of an argument list would run."""
    return _nested(list(argv), (), {})


def _base(word: str) -> str:
    return posixpath.basename(word)


def _find(
    argv: list[str], at: int, wrappers: tuple[str, ...], env: dict[str, str], removed: tuple[str, ...]
) -> Found | None:
    if at >= len(argv) or len(wrappers) > MAX_WRAPPERS:
        return None
    head = _base(argv[at])
    if _PYTHON.match(head):
        return _python(argv, at, at, wrappers, env, removed)
    if head in _LAUNCHERS:
        return _torchrun(argv, at, wrappers, env, removed)
    if head not in _WRAPPERS:
        return None
    inner, added, gone = _inner(argv, at, head)
    if inner is None:
        return None
    return _find(argv, inner, (*wrappers, head), {**env, **added}, (*removed, *gone))


def _inner(argv: list[str], at: int, head: str) -> tuple[int | None, dict[str, str], tuple[str, ...]]:
    """Where the wrapped command starts, and what the wrapper does to its environment."""
    env: dict[str, str] = {}
    gone: list[str] = []
    start = at + 1
    if head in ("ray", "kubectl") and "--" in argv[start:]:
        stop = argv.index("--", start)
        env = _ray_env(argv[start:stop]) if head == "ray" else {}
        return stop + 1, env, ()
    if head == "ray" and argv[start : start + 2] != ["job", "submit"]:
        return None, {}, ()
    if head == "ray":
        env = _ray_env(argv[start:])
    for index in range(start, len(argv)):
        word = argv[index]
        base = _base(word)
        previous = argv[index - 1] if index > start else ""
        assigned = re.match(r"([A-Za-z_]\w*)=(.*)\Z", word, re.DOTALL)
        if (head in ("env", "sudo") and assigned) or (
            head in ("docker", "podman", "nerdctl") and previous in ("-e", "--env") and assigned
        ):
            env[assigned[1]] = assigned[2]
        elif head in ("docker", "podman", "nerdctl") and (
            inline := re.match(r"(?:--env=|-e)([A-Za-z_]\w*)=(.*)\Z", word, re.DOTALL)
        ):
            env[inline[1]] = inline[2]
        elif head == "srun" and word.startswith("--export="):
            for pair in word.removeprefix("--export=").split(","):
                name, equals, value = pair.partition("=")
                if equals:
                    env[name] = value
        elif head == "env" and previous in ("-u", "--unset"):
            gone.append(word)
        elif head == "env" and word.startswith("--unset="):
            gone.append(word.removeprefix("--unset="))
        elif (_PYTHON.match(base) or base in _LAUNCHERS or base in _SHELLS or base in _WRAPPERS) and not (
            previous.startswith("-")
            and previous in ("-n", "--name", "-p", "--prefix", "-J", "--container", "--container-name")
        ):
            if base in _WRAPPERS and head in ("docker", "podman", "kubectl", "conda", "uv") and index == start:
                continue
            return index, env, tuple(gone)
    return None, env, tuple(gone)


def _ray_env(words: list[str]) -> dict[str, str]:
    for at, word in enumerate(words):
        text = ""
        if word.startswith("--runtime-env-json="):
            text = word.partition("=")[2]
        elif word == "--runtime-env-json" and at + 1 < len(words):
            text = words[at + 1]
        if text and len(text) < 50_000 and text.count("{") + text.count("[") < 100:
            try:
                value = json.loads(text)
            except ValueError:
                continue
            if isinstance(value, dict) and isinstance(value.get("env_vars"), dict):
                return {str(key): str(item) for key, item in value["env_vars"].items()}
    return {}


def _python(
    argv: list[str], start: int, at: int, wrappers: tuple[str, ...], env: dict[str, str], removed: tuple[str, ...]
) -> Found | None:
    index = at + 1
    while index < len(argv):
        word = argv[index]
        if word == "-m":
            if index + 1 >= len(argv):
                return None
            module = argv[index + 1]
            if module in ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"):
                return _torchrun(argv, index + 1, wrappers, env, removed, start=start)
            if module in ("cProfile", "viztracer", "memray", "scalene", "debugpy", "pdb", "trace"):
                return _torchrun(argv, index + 1, wrappers, env, removed, start=start)
            return _entry(argv, start, index, index + 1, wrappers, env, removed)
        if word.startswith("-m") and re.fullmatch(r"-m[A-Za-z_][\w.]*", word):
            return None
        if word in ("-W", "-X") and index + 1 < len(argv):
            index += 2
            continue
        if word in _FLAG_ONLY or re.match(r"-[WX].", word):
            index += 1
            continue
        if word.startswith("-"):
            return None
        return _entry(argv, start, index, index, wrappers, env, removed)
    return None


def _torchrun(
    argv: list[str],
    at: int,
    wrappers: tuple[str, ...],
    env: dict[str, str],
    removed: tuple[str, ...],
    start: int | None = None,
) -> Found | None:
    name = _base(argv[at])
    for index in range(at + 1, len(argv)):
        word = argv[index]
        if word in ("-m", "--module") and index + 1 < len(argv):
            return _entry(argv, at if start is None else start, index, index + 1, (*wrappers, name), env, removed)
        if word.endswith(".py") and not word.startswith("-"):
            return _entry(argv, at if start is None else start, index, index, (*wrappers, name), env, removed)
    return None


def _entry(
    argv: list[str],
    start: int,
    stop: int,
    at: int,
    wrappers: tuple[str, ...],
    env: dict[str, str],
    removed: tuple[str, ...],
) -> Found | None:
    if at >= len(argv):
        return None
    arguments = argv[at + 1 :]
    if entrypoint_kind(argv[at], arguments) is None:
        return None
    return Found(start, at + 1, " ".join(argv[start:stop]), argv[at], wrappers, env, removed)


def _nested(argv: list[str], wrappers: tuple[str, ...], env: dict[str, str]) -> Nested | None:
    if not argv or len(wrappers) > MAX_WRAPPERS:
        return None
    head = _base(argv[0])
    if head in _SHELLS:
        return _shell(argv, (*wrappers, head), env)
    if argv[0].endswith(".sh"):
        return Nested("file", argv[0], tuple(argv[1:]), wrappers, env)
    if head == "ssh" and len(argv) > 2:
        words = [word for word in argv[1:] if not word.startswith("-")]
        if len(words) == 2 and " " in words[1]:
            return Nested("text", words[1], (), (*wrappers, head), env)
    if head not in _WRAPPERS:
        return None
    inner, added, _ = _inner(argv, 0, head)
    if inner is not None and inner < len(argv):
        if len(argv) - inner == 1 and " " in argv[inner]:
            return Nested("text", argv[inner], (), (*wrappers, head), {**env, **added})
        return _nested(argv[inner:], (*wrappers, head), {**env, **added})
    scripts = [i for i, word in enumerate(argv[1:], 1) if word.endswith(".sh") and not word.startswith("-")]
    if scripts:
        return Nested("file", argv[scripts[0]], tuple(argv[scripts[0] + 1 :]), (*wrappers, head), {**env, **added})
    return None


def _shell(argv: list[str], wrappers: tuple[str, ...], env: dict[str, str]) -> Nested | None:
    index = 1
    while index < len(argv):
        word = argv[index]
        if re.fullmatch(r"-[a-z]*c", word):
            if index + 1 >= len(argv):
                return None
            return Nested("text", argv[index + 1], tuple(argv[index + 3 :]), wrappers, env)
        if word in ("-o", "+o", "-O", "--rcfile", "--init-file"):
            index += 2
            continue
        if word == "-s":
            return Nested("stdin", "", tuple(argv[index + 1 :]), wrappers, env)
        if word.startswith(("-", "+")):
            index += 1
            continue
        return Nested("file", word, tuple(argv[index + 1 :]), wrappers, env)
    return Nested("stdin", "", (), wrappers, env)


def split_command(text: str) -> list[str]:
    """Words of a pasted command, as a shell would split it where nothing is expanded."""
    return shlex.split(text)


__all__ = ["Found", "Nested", "entrypoint_kind", "find_launch", "looks_like_override", "nested_script", "split_command"]
