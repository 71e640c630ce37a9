"""Reads the user's command: a bash script, a YAML file of overrides, a Hydra config, or a pasted command. Runs nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.launch.config_source import command_of_config, command_of_yaml
from autotune.launch.errors import LaunchError, TooComplex
from autotune.launch.evaluate import Evaluator, Hit, Reading
from autotune.launch.expand import Missing
from autotune.launch.hydra_grammar import looks_like_override, read_override
from autotune.launch.launch import Context, Finding, Launch, Override, Unresolved
from autotune.launch.lint import findings
from autotune.launch.state import Field, is_unknown, shown, unknown_parts, variables_of
from autotune.launch.syntax import DoubleQuoted, Literal, Parameter, Part, Simple, Word
from autotune.launch.wrappers import entrypoint_kind

MAX_BYTES = 262_144
MAX_OVERRIDES = 400
_VALUED = {
    "config-path": "cp",
    "config-name": "cn",
    "config-dir": "cd",
    "cfg": "c",
    "package": "p",
    "experimental-rerun": "",
}
_SHORT = {f"-{short}": name for name, short in _VALUED.items() if short}
_IGNORED = {"OLDPWD", "PWD", "SHLVL", "_", "AUTOTUNE_PUSHED"}
_GIVE = "give it in the environment or with --env NAME=VALUE"


@dataclass(frozen=True, slots=True)
class Source:
    """A text to read, and what it came from."""

    text: str
    path: str | None
    kind: str
    lines: Mapping[str, int]
    """Lines of override keys where the text was made from another file."""


def read_launch(
    source: str | os.PathLike[str],
    *,
    env: Mapping[str, str] | None = None,
    set_overrides: Mapping[str, str] | Sequence[str] = (),
    cwd: str | None = None,
    home: str | None = None,
    args: Sequence[str] = (),
    given: Mapping[str, str] | None = None,
    choose: int | None = None,
) -> Launch:
    """The training command that a script, YAML file, Hydra config or pasted command would launch.

    Args:
        source: a path, or the command itself.
        env: environment the script would start with; None: this process's own.
        set_overrides: Hydra overrides that follow the command's own; a mapping holds values in Hydra's grammar.
        cwd: folder it would be started in; None: the current one.
        home: for `~`; None: `HOME` of `env`.
        args: arguments of the script.
        given: values by variable name for what only a shell could know, such as `{"NODES": "2"}` for `NODES=$(…)`.
        choose: which launch, counted from 1, where there are several.

    Raises:
        LaunchError: with `code`, `line` and one sentence: FILE_NOT_FOUND, NOT_A_FILE, NOT_READABLE, NOT_TEXT, TOO_LARGE, TOO_COMPLEX,
            SHELL_SYNTAX, SHELL_ARITHMETIC, SHELL_BROKEN_CONTINUATION, NO_LAUNCH_FOUND, MULTIPLE_LAUNCHES, UNSUPPORTED_ENTRYPOINT,
            UNSET_VARIABLE, BAD_YAML, BAD_SET.
    """
    extra = _set_arguments(set_overrides)
    context = Context(
        dict(os.environ if env is None else env),
        cwd or os.getcwd(),
        home,
        tuple(args),
        dict(given or {}),
        extra,
        choose,
    )
    return read_text(load(source, context.cwd), context)


def read_text(source: Source, context: Context) -> Launch:
    """`read_launch` for a text that is at hand."""
    text, early = clean(source.text)
    if "\0" in text:
        raise LaunchError(
            "NOT_TEXT", f"{source.path or 'the input'} is not a text file; name the bash script that launches verl"
        )
    evaluator = Evaluator(
        text,
        env=context.env,
        cwd=context.cwd,
        home=context.home,
        args=context.args,
        name=source.path or "bash",
        given=context.given,
        reads_files=context.reads_files,
    )
    reading = evaluator.run()
    chosen = _choose(reading, source, context)
    _refuse_broken(reading, chosen, text)
    _refuse_missing(reading, chosen)
    launch = _launch(reading, reading.hits[chosen], source, context, text)
    kind = launch.entrypoint_kind
    if kind == "other":
        raise LaunchError(
            "UNSUPPORTED_ENTRYPOINT",
            f"line {launch.line}: the script launches {launch.entrypoint}, which has none of the settings that autotune tunes; it tunes "
            f"verl.trainer.main_ppo",
            line=launch.line,
        )
    bad = [
        Finding(
            "BAD_ASSIGNMENT",
            line,
            f"{said!r} assigns nothing: bash takes it for a command. Write NAME=value without spaces",
        )
        for line, said in reading.bad_assignments
    ]
    overrides = (
        tuple(replace(o, line=source.lines.get(o.key, o.line)) for o in launch.overrides)
        if source.lines
        else launch.overrides
    )
    return replace(launch, overrides=overrides, lint=(*early, *bad, *findings(overrides, kind)))


def load(source: str | os.PathLike[str], cwd: str) -> Source:
    """The text behind a path or a pasted command."""
    if isinstance(source, str) and _pasted(source):
        return Source(source if source.endswith("\n") else source + "\n", None, "command", {})
    path = Path(cwd, os.fspath(source))
    name = os.fspath(source)
    try:
        if path.is_dir():
            text = command_of_config(path, None)
            if text is None:
                raise LaunchError(
                    "NOT_A_FILE", f"{name} is a folder without a verl config; name a script, or a config in it"
                )
            return Source(text, name, "config", {})
        if not path.exists():
            found = command_of_config(path.parent, path.name) if path.parent.is_dir() else None
            if found is not None:
                return Source(found, name, "config", {})
            raise LaunchError(
                "FILE_NOT_FOUND", f"{name}: no such file; check the path, or quote the whole command to paste it"
            )
        if not path.is_file():
            raise LaunchError("NOT_A_FILE", f"{name} is neither a file nor a folder; name a bash script or a YAML file")
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise LaunchError(
                "TOO_LARGE", f"{name} has {size} bytes; launch scripts of up to {MAX_BYTES} bytes are read"
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, LaunchError):
            raise
        raise LaunchError(
            "NOT_READABLE", f"{name[:200]!r} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if b"\0" in data:
        raise LaunchError("NOT_TEXT", f"{name} is not a text file; name the bash script that launches verl")
    text = data.decode("utf-8", "surrogateescape")
    if path.suffix in (".yaml", ".yml"):
        made, lines = command_of_yaml(text, path)
        return Source(made, name, "yaml", lines)
    return Source(text, name, "script", {})


def clean(text: str) -> tuple[str, list[Finding]]:
    """The text as bash should see it, and what was wrong with its encoding."""
    found = []
    if text.startswith("\ufeff"):
        text = text[1:]
        found.append(
            Finding(
                "BOM",
                1,
                "the file starts with a byte order mark, which bash takes for part of the first command; the written script has none",
            )
        )
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
        found.append(
            Finding(
                "CRLF",
                1,
                "the file has Windows line ends: bash would pass \\r in values and break every continuation; the written script has Unix ones",
            )
        )
    return text, found


def _pasted(source: str) -> bool:
    if "\n" in source.strip():
        return True
    return (
        " " in source.strip()
        and re.search(r"python|torchrun|main_ppo|verl\.", source) is not None
        and not os.path.exists(source)
    )


def _set_arguments(given: Mapping[str, str] | Sequence[str]) -> tuple[str, ...]:
    items = [f"{key}={value}" for key, value in given.items()] if isinstance(given, Mapping) else list(given)
    for item in items:
        if not looks_like_override(item):
            raise LaunchError("BAD_SET", f"--set {item!r} is no override; expected key=value")
        read = read_override(item)
        if read.error is not None:
            raise LaunchError("BAD_SET", f"--set {item!r}: Hydra refuses it: {read.error}")
    return tuple(items)


# -- which launch --------------------------------------------------------------------------------------------------
def _choose(reading: Reading, source: Source, context: Context) -> int:
    hits = reading.hits
    unique: list[int] = []
    for index, hit in enumerate(hits):
        if not any(_same(hit, hits[other]) for other in unique):
            unique.append(index)
    if not unique:
        _refuse_none(reading, source)
    kinds = {index: _kind(hits[index]) for index in unique}
    trainers = [index for index in unique if kinds[index] != "other"] or unique
    if len(trainers) == 1:
        return trainers[0]
    if context.choose is not None:
        if not 1 <= context.choose <= len(trainers):
            raise LaunchError(
                "MULTIPLE_LAUNCHES", f"launch {context.choose} does not exist; the script has {len(trainers)}"
            )
        return trainers[context.choose - 1]
    if all(kinds[index] == "other" for index in trainers):
        return trainers[0]
    listed = "; ".join(
        f"{number}: line {hits[index].line}, {shown(hits[index].found.entrypoint)}{_difference(hits, trainers, index)}"
        for number, index in enumerate(trainers[:12], 1)
    )
    raise LaunchError(
        "MULTIPLE_LAUNCHES",
        f"the script launches verl {len(trainers)} times ({listed}); choose one with --launch N, or give autotune a script with one",
        line=hits[trainers[1]].line,
    )


def _difference(hits: list[Hit], indices: list[int], index: int) -> str:
    first = indices[0] if index != indices[0] else indices[1]
    other = {item.text for item in hits[first].fields}
    mine = [shown(item.text) for item in hits[index].fields if item.text not in other]
    return f" with {' '.join(mine[:2])}"[:160] if mine else ""


def _same(one: Hit, two: Hit) -> bool:
    return one.node is two.node and [f.text for f in one.fields] == [f.text for f in two.fields] and one.env == two.env


def _kind(hit: Hit) -> str:
    return entrypoint_kind(hit.found.entrypoint, [f.text for f in hit.fields[hit.found.first :]]) or "own"


def _refuse_none(reading: Reading, source: Source) -> None:
    _refuse_missing(reading, 0)
    what = source.path or "the command"
    hint = ""
    for line, text in reading.skipped:
        if "verl" in text or "main_ppo" in text:
            hint = f"; line {line} names verl, but what it runs is known to a shell only"
            break
    if not hint:
        rows = reading.texts[0].split("\n")
        named = [
            n for n, row in enumerate(rows, 1) if "verl" in row and "-m" in row and not row.lstrip().startswith("#")
        ]
        if named:
            hint = f"; line {named[0]} would, but with this environment and these arguments the script never gets there (give variables with --env)"
    raise LaunchError(
        "NO_LAUNCH_FOUND", f"{what} launches no verl trainer (such as python3 -m verl.trainer.main_ppo){hint}"
    )


def _refuse_broken(reading: Reading, chosen: int, text: str) -> None:
    rows = text.split("\n")
    hit = reading.hits[chosen]
    stray = next(
        (s for s in reading.strays if s.source == hit.source and s.after == chosen + 1 and _follows(s.line, hit)), None
    )
    blank = next(
        (
            f
            for f in hit.fields[hit.found.first :]
            if f.text.strip() == "" and f.origin is not None and f.origin.raw.startswith("\\")
        ),
        None,
    )
    if stray is None:
        if blank is not None and blank.line is not None:
            raise _broken(
                blank.line, "a backslash followed by a space passes a blank argument and ends the command", []
            )
        return
    if hit.source != 0:
        rows = reading.texts[hit.source].split("\n")
    at = stray.line - 1
    while (
        at > 1 and _empty_row(rows[at - 1]) and (_empty_row(rows[at - 2]) or not rows[at - 2].rstrip().endswith("\\"))
    ):
        at -= 1
    dropped = []
    for row in rows[stray.line - 1 :]:
        dropped.append(row.strip().rstrip("\\").strip())
        if not row.rstrip().endswith("\\"):
            break
    dropped = [item for item in dropped if item and not item.startswith("#")]
    row = rows[at - 1].strip()
    if not row:
        why = "is blank, which ends the command"
    elif row.startswith("#"):
        why = "is a comment, which ends the command although the line before it has a backslash"
    elif row.endswith("\\"):
        why = "has a space after its backslash, which ends the command"
    else:
        why = "misses its backslash, so the command ends there"
    raise _broken(at, why, dropped, stray.line)


def _empty_row(row: str) -> bool:
    return not row.strip() or row.lstrip().startswith("#")


def _follows(line: int, hit: Hit) -> bool:
    return line > hit.node.line


def _broken(line: int, why: str, dropped: list[str], first: int | None = None) -> LaunchError:
    lost = f"; {', '.join(dropped[:8])} (from line {first}) never reach verl" if dropped else ""
    return LaunchError("SHELL_BROKEN_CONTINUATION", f"line {line} {why}{lost}", line=line)


def _refuse_missing(reading: Reading, chosen: int) -> None:
    missing: dict[str, Missing] = {}
    for item, before in reading.missing:
        if before <= chosen:
            missing.setdefault(item.name, item)
    if not missing:
        return
    give = "give it as an argument of the script, after --" if all(name.isdigit() for name in missing) else _GIVE
    listed = ", ".join(f"{m.name} (line {m.line}{': ' + m.message if m.message else ''})" for m in missing.values())
    first = next(iter(missing.values()))
    verb = "is" if len(missing) == 1 else "are"
    raise LaunchError("UNSET_VARIABLE", f"{listed} {verb} not set, and bash would stop there; {give}", line=first.line)


# -- the value -----------------------------------------------------------------------------------------------------
def _launch(reading: Reading, hit: Hit, source: Source, context: Context, text: str) -> Launch:
    flags: dict[str, str] = {}
    overrides: list[Override] = []
    unresolved: list[Unresolved] = []
    tail = list(hit.fields[hit.found.first :])
    if len(tail) > MAX_OVERRIDES:
        raise TooComplex(f"passes more than {MAX_OVERRIDES} arguments", line=hit.line)
    position = 0
    while position < len(tail):
        item = tail[position]
        position += 1
        if (item.text.startswith("-") and not looks_like_override(item.text.lstrip("-"))) or item.text.startswith("--"):
            position = _flag(item, tail, position, flags, unresolved)
        else:
            overrides.append(_override(item, _top_line(hit, item)))
    extra = [_override(Field(argument), None) for argument in context.set_overrides]
    decided = {o.key for o in extra}
    for o in overrides:
        if o.unknown and o.key not in decided:
            unresolved.append(Unresolved(o.key, o.value or o.argument, o.line))
    env, removed = _environment(hit, context)
    unresolved.extend(Unresolved(name, shown(value), None) for name, value in env.items() if is_unknown(value))
    for what, value in (("the working directory", hit.cwd), ("the entry point", hit.found.entrypoint)):
        if is_unknown(value):
            unresolved.append(Unresolved(what, shown(value), hit.line))
    return Launch(
        path=source.path,
        text=source.text,
        kind=source.kind,
        launcher=shown(hit.found.launcher),
        entrypoint=shown(hit.found.entrypoint),
        entrypoint_kind=_kind(hit),
        hydra_flags=flags,
        overrides=(*overrides, *extra),
        env={name: shown(value) for name, value in env.items()},
        removed_env=removed,
        cwd=shown(hit.cwd),
        passthrough=_passthrough(hit.outer or hit.node) or (_passthrough(hit.node) if hit.outer is None else None),
        wrappers=hit.wrappers,
        unresolved=tuple(unresolved),
        lint=(),
        not_executed=_not_executed(reading, hit),
        line=hit.line,
        argv_tail=tuple(shown(item.text) for item in tail),
        context=context,
        node=hit.outer if hit.outer is not None else hit.node,
    )


def _top_line(hit: Hit, item: Field) -> int | None:
    if hit.outer is not None:
        return hit.outer.line
    return item.line


def _not_executed(reading: Reading, hit: Hit) -> tuple[tuple[int, str], ...]:
    others = {
        (other.line, " ".join(reading.texts[0][other.node.start : other.node.end].split())[:300])
        for other in reading.hits
        if other.source == 0 and other.node is not hit.node
    }
    return tuple(sorted({*reading.skipped, *others}))


def _flag(item: Field, tail: list[Field], position: int, flags: dict[str, str], unresolved: list[Unresolved]) -> int:
    name, equals, value = item.text.partition("=")
    name = _SHORT.get(name, name.lstrip("-"))
    if not equals and name in _VALUED and position < len(tail):
        value = tail[position].text
        position += 1
    flags[shown(name)] = shown(value)
    if is_unknown(value):
        unresolved.append(Unresolved(f"--{name}", shown(value), item.line))
    return position


def _override(item: Field, line: int | None) -> Override:
    text = shown(item.text)
    read = read_override(text)
    unknown = tuple(unknown_parts(item.text))
    typed, error = (read.value, None) if unknown else (read.typed, read.error)
    word = item.origin if item.origin is not None and item.origin.source == 0 else None
    return Override(
        read.op,
        read.key,
        read.value,
        typed,
        line,
        error,
        text,
        word,
        item.braces,
        item.unset,
        item.passthrough,
        unknown,
    )


def _environment(hit: Hit, context: Context) -> tuple[dict[str, str], tuple[str, ...]]:
    base = {name: variable.text or "" for name, variable in variables_of(context.env).items()}
    if context.home is not None:
        base.setdefault("HOME", context.home)
    full = {**hit.env, **hit.found.env}
    added = {name: value for name, value in full.items() if base.get(name) != value and name not in _IGNORED}
    removed = [name for name in base if name not in full and name not in _IGNORED]
    return added, (*removed, *(name for name in hit.found.removed if name not in removed))


def _passthrough(node: Simple) -> str | None:
    for word in node.words:
        if isinstance(word, Word):
            for part in word.parts:
                if _is_arguments(part):
                    return "unquoted"
                if isinstance(part, DoubleQuoted) and any(_is_arguments(inner) for inner in part.parts):
                    return "quoted"
    return None


def _is_arguments(part: Part) -> bool:
    return isinstance(part, Parameter) and part.name in ("@", "*") and not part.length


__all__ = ["Literal", "Source", "clean", "load", "read_launch", "read_text"]
