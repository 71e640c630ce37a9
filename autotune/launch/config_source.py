"""Commands that are not bash: YAML files of overrides and Hydra configs, turned into the bash command that they stand for."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import yaml

from autotune.launch.errors import LaunchError, TooComplex
from autotune.launch.hydra_grammar import format_value

ENTRYPOINT = "verl.trainer.main_ppo"
MAX_YAML = 65_536
MAX_LEAVES = 1_000
_OWN = {"overrides", "env", "entrypoint", "python", "config_path", "config_name", "args"}


def command_of_config(folder: Path, name: str | None) -> str | None:
    """The command for a Hydra config folder and the name of a config in it; None: there is none.

    Without a name the folder must hold exactly one primary config: a YAML file with a `defaults` list at its top.
    """
    if name is None:
        primary = [
            path for path in sorted(folder.glob("*.y*ml")) if path.stat().st_size <= MAX_YAML and is_primary(path)
        ]
        if len(primary) > 1:
            listed = ", ".join(path.stem for path in primary)
            raise LaunchError(
                "MULTIPLE_LAUNCHES",
                f"{folder} holds several Hydra configs ({listed}); name one, such as {folder}/{primary[0].stem}",
            )
        if not primary:
            return None
        name = primary[0].stem
    elif not any((folder / f"{name}{ending}").is_file() for ending in (".yaml", ".yml")):
        return None
    return _command([], {}, ENTRYPOINT, "python3", {"config-path": str(folder.resolve()), "config-name": name})


def is_primary(path: Path) -> bool:
    """Whether a YAML file is a Hydra config that composes others."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return any(row.startswith(("defaults:", "hydra:")) for row in text.split("\n"))


def command_of_yaml(text: str, path: Path) -> tuple[str, dict[str, int]]:
    """The command that a YAML file stands for, and the line of each override's key.

    The file is one of: a Hydra config (`defaults:` at its top); a mapping with `overrides:` (a mapping or a list of `key=value`) and
    optionally `env:`, `entrypoint:`, `python:`, `config_path:`, `config_name:`; a mapping of keys, dotted or nested; a list of `key=value`.

    Raises:
        LaunchError: BAD_YAML, TOO_LARGE.
    """
    if len(text) > MAX_YAML:
        raise LaunchError(
            "TOO_LARGE", f"{path.name} has {len(text)} characters; YAML files of up to {MAX_YAML} are read"
        )
    if text.count("[") + text.count("{") > 2_000 or any(
        len(row) - len(row.lstrip(" ")) > 400 for row in text.split("\n")
    ):
        raise TooComplex("is a YAML file that nests too deeply")
    try:
        events = list(yaml.parse(text, Loader=yaml.SafeLoader))
        if any(isinstance(event, yaml.AliasEvent) for event in events):
            raise LaunchError(
                "BAD_YAML",
                f"{path.name} uses YAML aliases, which a file of overrides does not need; write the values out",
            )
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else None
        raise LaunchError(
            "BAD_YAML", f"{path.name} is not YAML: {getattr(error, 'problem', None) or 'unreadable'}", line=line
        ) from None
    except RecursionError:
        raise TooComplex("is a YAML file that nests too deeply") from None
    if isinstance(node, yaml.MappingNode) and {"defaults", "hydra"} & _keys(node).keys():
        flags = {"config-path": str(path.parent.resolve()), "config-name": path.stem}
        return _command([], {}, ENTRYPOINT, "python3", flags), {}
    lines: dict[str, int] = {}
    top = _keys(node) if isinstance(node, yaml.MappingNode) else {}
    body: yaml.Node | None = node
    flags, env = {}, {}
    entrypoint, python = ENTRYPOINT, "python3"
    if "overrides" in top:
        unknown = sorted(set(top) - _OWN)
        if unknown:
            raise LaunchError(
                "BAD_YAML",
                f"{path.name}: unknown key {unknown[0]!r} beside overrides; known: {', '.join(sorted(_OWN))}",
            )
        body = top["overrides"]
        own = {key: _plain(value) for key, value in top.items() if key != "overrides"}
        env = (
            {str(key): _scalar_text(value) for key, value in (own.get("env") or {}).items()}
            if isinstance(own.get("env") or {}, dict)
            else {}
        )
        entrypoint, python = str(own.get("entrypoint") or ENTRYPOINT), str(own.get("python") or "python3")
        flags = {key.replace("_", "-"): str(own[key]) for key in ("config_path", "config_name") if own.get(key)}
    arguments = _arguments(body, "", lines, path)
    if not arguments and not flags:
        raise LaunchError(
            "NO_LAUNCH_FOUND", f"{path.name} holds no overrides; expected keys such as data.train_batch_size: 256"
        )
    return _command(arguments, env, entrypoint, python, flags), lines


def _keys(node: yaml.MappingNode) -> dict[str, yaml.Node]:
    return {str(key.value): value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _arguments(node: yaml.Node | None, prefix: str, lines: dict[str, int], path: Path, depth: int = 0) -> list[str]:
    if depth > 30:
        raise TooComplex("is a YAML file that nests too deeply")
    out: list[str] = []
    if isinstance(node, yaml.SequenceNode) and not prefix:
        for item in node.value:
            if not isinstance(item, yaml.ScalarNode) or (
                "=" not in str(item.value) and not str(item.value).startswith("~")
            ):
                raise LaunchError(
                    "BAD_YAML",
                    f"{path.name}: a list of overrides holds strings such as key=value",
                    line=item.start_mark.line + 1,
                )
            out.append(str(item.value))
            lines[str(item.value).partition("=")[0].lstrip("+~")] = item.start_mark.line + 1
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
                out.extend(_arguments(value, f"{name}.", lines, path, depth + 1))
            else:
                lines[name.lstrip("+~")] = key.start_mark.line + 1
                out.append(name if name.startswith("~") and not str(value.value) else f"{name}={_hydra(_plain(value))}")
    elif node is not None:
        raise LaunchError("BAD_YAML", f"{path.name}: expected a mapping or a list of overrides")
    if len(out) > MAX_LEAVES:
        raise TooComplex(f"sets more than {MAX_LEAVES} keys")
    return out


def _plain(node: yaml.Node) -> Any:
    constructor = yaml.SafeLoader("")
    try:
        return constructor.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        raise LaunchError("BAD_YAML", f"a value cannot be read: {error}", line=node.start_mark.line + 1) from None
    finally:
        constructor.dispose()


def _hydra(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(_hydra(item) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra(item)}" for key, item in value.items()) + "}"
    if value is None or isinstance(value, (bool, int, float, str)):
        if isinstance(value, float) and math.isnan(value):
            return "nan"
        return format_value(value)
    return format_value(str(value))


def _scalar_text(value: Any) -> str:
    return "" if value is None else str(value)


def _command(arguments: list[str], env: dict[str, str], entrypoint: str, python: str, flags: dict[str, str]) -> str:
    head = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    words = [*(f"--{name}={value}" for name, value in flags.items()), *arguments]
    tail = "".join(f" \\\n    {shlex.quote(word)}" for word in words)
    return f'#!/usr/bin/env bash\n{head}{shlex.quote(python)} -m {shlex.quote(entrypoint)}{tail} "$@"\n'
