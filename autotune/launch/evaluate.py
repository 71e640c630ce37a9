"""Follows a script the way bash would, without running anything, to the commands that launch training."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from autotune.launch import arithmetic
from autotune.launch.errors import LaunchError, TooComplex
from autotune.launch.expand import Expander, Missing
from autotune.launch.parser import parse_script
from autotune.launch.patterns import glob_regex
from autotune.launch.state import Field, Shell, Variable, is_unknown, shown, unknown, variables_of
from autotune.launch.syntax import (
    AndOr,
    ArithmeticCommand,
    ArithmeticFor,
    Assignment,
    Case,
    Command,
    CommandSubstitution,
    Condition,
    For,
    Function,
    Group,
    If,
    Pipeline,
    Redirect,
    Redirected,
    Sequence_,
    Simple,
    While,
    Word,
)
from autotune.launch.wrappers import Found, find_launch, nested_script

MAX_STEPS = 20_000
MAX_SECONDS = 1.2
MAX_CALLS = 12
MAX_LAUNCHES = 200
_SILENT = {
    "echo",
    "printf",
    ":",
    "true",
    "false",
    "sleep",
    "wait",
    "trap",
    "set",
    "shopt",
    "hash",
    "type",
    "alias",
    "ulimit",
    "umask",
}


@dataclass(frozen=True, slots=True)
class Hit:
    """A launch command, as it would be started."""

    node: Simple
    fields: tuple[Field, ...]
    found: Found
    env: Mapping[str, str]
    """Everything the program would see, before what wrappers add."""
    cwd: str
    wrappers: tuple[str, ...]
    line: int
    conditional: bool
    source: int
    outer: Simple | None = None
    """The command of the user's script that holds it, where it stands in a nested script."""


@dataclass(frozen=True, slots=True)
class Stray:
    """A command that looks like an override cut off from its launch."""

    line: int
    text: str
    start: int
    source: int
    after: int
    """How many launches had been met."""


@dataclass(slots=True)
class Reading:
    """What was met on the way."""

    hits: list[Hit] = field(default_factory=list)
    strays: list[Stray] = field(default_factory=list)
    missing: list[tuple[Missing, int]] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)
    bad_assignments: list[tuple[int, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


class _Stop(Exception):
    def __init__(self, status: int | None = 0, levels: int = 1) -> None:
        super().__init__()
        self.status = status
        self.levels = levels


class _Exit(_Stop):
    pass


class _Return(_Stop):
    pass


class _Break(_Stop):
    pass


class _Continue(_Stop):
    pass


class Evaluator:
    """Evaluates one script.

    Args:
        text: the script, Unix line ends.
        env: environment it would start with.
        cwd: folder it would start in.
        home: for `~`; None: `HOME` of the environment.
        args: its arguments.
        name: `$0`.
        given: values that the user has named for what only a shell could know.
        reads_files: whether files of this host may be read and looked for.
    """

    def __init__(
        self,
        text: str,
        *,
        env: Mapping[str, str],
        cwd: str,
        home: str | None,
        args: Sequence[str],
        name: str,
        given: Mapping[str, str],
        reads_files: bool = True,
    ) -> None:
        self.reading = Reading(texts=[text])
        self.shell = Shell(variables_of(env), [Field(arg, passthrough=True) for arg in args], cwd, name=name)
        self.shell.variables["IFS"] = Variable(" \t\n")
        if home is not None and "HOME" not in self.shell.variables:
            self.shell.variables["HOME"] = Variable(home, exported=True)
        self._given = given
        self.reads_files = reads_files
        self._expander = Expander(lambda: self.shell, self._substitution, self._miss, home)
        self._steps = 0
        self._written: dict[str, str] = {}
        self._deadline = time.monotonic() + MAX_SECONDS
        self._calls = 0
        self._output: list[str] | None = None
        self._output_known = True
        self._conditional = 0
        self._wrappers: tuple[str, ...] = ()
        self._outer: Simple | None = None
        self._line = 0
        self._scopes: list[dict[str, Variable | None]] = []
        self._status: int | None = 0
        self._pipe_input: list[Redirect] = []

    def run(self) -> Reading:
        """Follows the script to its end."""
        tree = parse_script(self.reading.texts[0])
        with contextlib.suppress(_Stop):
            self._sequence(tree)
        return self.reading

    # -- control ---------------------------------------------------------------------------------------------------
    def _step(self, line: int) -> None:
        self._steps += 1
        self._line = line
        if self._steps > MAX_STEPS:
            raise TooComplex(f"takes more than {MAX_STEPS} steps", line=line)
        if self._steps % 64 == 0 and time.monotonic() > self._deadline:
            raise TooComplex("takes too long to follow", line=line)

    def _miss(self, missing: Missing) -> None:
        self.reading.missing.append((replace(missing, line=missing.line or self._line), len(self.reading.hits)))

    def _sequence(self, body: Sequence_) -> int | None:
        status: int | None = 0
        for statement in body.statements:
            status = self._and_or(statement)
            self._status = status
        return status

    def _and_or(self, statement: AndOr) -> int | None:
        self._step(statement.line)
        if statement.background:
            saved = self.shell
            self.shell = saved.fork()
            try:
                self._chain(statement)
            except _Stop:
                pass
            finally:
                self.shell = saved
            return 0
        return self._chain(statement)

    def _chain(self, statement: AndOr) -> int | None:
        last = len(statement.pipelines) - 1
        status = self._pipeline(statement.pipelines[0], errexit=last == 0)
        for at, (operator, pipeline) in enumerate(zip(statement.operators, statement.pipelines[1:], strict=True)):
            if status is None:
                if (operator == "||" and _ends(pipeline)) or (operator == "||" and self._works):
                    status = 0
                elif operator == "&&" and self._works:
                    status = self._pipeline(pipeline, errexit=at + 1 == last)
                else:
                    status = self._maybe(partial(self._pipeline, pipeline))
            elif (status == 0) == (operator == "&&"):
                status = self._pipeline(pipeline, errexit=at + 1 == last)
        return status

    def _maybe(self, run: Callable[[], int | None]) -> int | None:
        """Follows what may or may not run; afterwards only what both ways agree on is known."""
        self._fork([run, lambda: 0])
        return None

    def _fork(self, ways: list[Callable[[], int | None]]) -> int | None:
        base = self.shell
        ends: list[Shell] = []
        stops: list[_Stop] = []
        statuses: list[int | None] = []
        self._conditional += 1
        if self._conditional > 12:
            raise TooComplex("depends on too many unknown conditions", line=self._line)
        try:
            for way in ways:
                self.shell = base.fork()
                try:
                    statuses.append(way())
                    ends.append(self.shell)
                except _Stop as stop:
                    stops.append(stop)
        finally:
            self._conditional -= 1
            self.shell = base
        if not ends:
            raise stops[0]
        self.shell.merge(ends)
        return statuses[0] if len(set(statuses)) == 1 else None

    def _pipeline(self, pipeline: Pipeline, *, errexit: bool = False) -> int | None:
        wrapped = self._wrappers
        self._wrappers = (*wrapped, "time") if pipeline.timed else wrapped
        try:
            status = self._command(pipeline.commands[0]) if len(pipeline.commands) == 1 else self._pipe(pipeline)
        finally:
            self._wrappers = wrapped
        if pipeline.negated:
            return None if status is None else int(not status)
        if errexit and status is not None and status != 0 and "errexit" in self.shell.options and not self._testing:
            raise _Exit(status)
        return status

    _testing = 0
    _works = False
    """The last command of unknown status is one that scripts expect to work (`mkdir`, `pip install`), not a question (`grep -q`)."""

    def _pipe(self, pipeline: Pipeline) -> int | None:
        """Commands joined by `|`: each in a shell of its own; what flows between them is not followed."""
        saved, output, known = self.shell, self._output, self._output_known
        status: int | None = 0
        last = len(pipeline.commands) - 1
        for at, command in enumerate(pipeline.commands):
            self.shell = saved.fork()
            self._output, self._output_known = (output, known) if at == last else ([], True)
            if at:
                self._pipe_input.append(Redirect("|", None))
            try:
                status = self._command(command)
            except _Stop as stop:
                status = stop.status
            finally:
                if at:
                    self._pipe_input.pop()
        self.shell, self._output, self._output_known = saved, output, known and output is None
        return status

    def _command(self, command: Command) -> int | None:
        if isinstance(command, Simple):
            return self._simple(command)
        if isinstance(command, Redirected):
            return self._redirected(command)
        if isinstance(command, If):
            return self._if(command)
        if isinstance(command, For):
            return self._for(command)
        if isinstance(command, ArithmeticFor):
            return self._arithmetic_for(command)
        if isinstance(command, While):
            return self._while(command)
        if isinstance(command, Case):
            return self._case(command)
        if isinstance(command, Function):
            self.shell.functions[command.name] = command.body
            return 0
        if isinstance(command, Condition):
            self._works = False
            return _Test(self, command.line).double(command.tokens)
        if isinstance(command, ArithmeticCommand):
            value = self._expander.number(command.expression, command.expression.raw, command.line)
            return None if is_unknown(value) else int(value == "0")
        if command.subshell:
            saved = self.shell
            self.shell = saved.fork()
            try:
                return self._sequence(command.body)
            except _Exit as stop:
                return stop.status
            finally:
                self.shell = saved
        return self._sequence(command.body)

    def _redirected(self, command: Redirected) -> int | None:
        fed = [redirect for redirect in command.redirects if redirect.operator in ("<<", "<<-", "<<<", "<")]
        self._pipe_input.extend(fed)
        try:
            return self._command(command.command)
        finally:
            del self._pipe_input[len(self._pipe_input) - len(fed) :]

    def _if(self, command: If) -> int | None:
        for at, (condition, body) in enumerate(command.branches):
            self._testing += 1
            try:
                status = self._sequence(condition)
            finally:
                self._testing -= 1
            if status is None:
                rest = If(command.branches[at + 1 :], command.otherwise, command.line)
                return self._fork([partial(self._sequence, body), partial(self._if, rest)])
            if status == 0:
                return self._sequence(body)
        return self._sequence(command.otherwise) if command.otherwise is not None else 0

    def _loop(self, body: Sequence_) -> bool:
        """One round; True: go on."""
        try:
            self._sequence(body)
        except _Break as stop:
            if stop.levels > 1:
                raise _Break(0, stop.levels - 1) from None
            return False
        except _Continue as stop:
            if stop.levels > 1:
                raise _Continue(0, stop.levels - 1) from None
        return True

    def _for(self, command: For) -> int | None:
        items = (
            list(self.shell.positional)
            if command.words is None
            else [item for word in command.words for item in self._expander.fields(word)]
        )
        for item in items:
            self._step(command.line)
            self._set(command.name, item.text)
            if not self._loop(command.body):
                break
        return 0

    def _arithmetic_for(self, command: ArithmeticFor) -> int | None:
        self._expander.number(command.setup, command.setup.raw, command.line)
        while True:
            self._step(command.line)
            test = (
                self._expander.number(command.test, command.test.raw, command.line) if command.test.raw.strip() else "1"
            )
            if is_unknown(test):
                return self._maybe(lambda: int(not self._loop(command.body)))
            if test == "0" or not self._loop(command.body):
                return 0
            self._expander.number(command.step, command.step.raw, command.line)

    def _while(self, command: While) -> int | None:
        while True:
            self._step(command.line)
            self._testing += 1
            try:
                status = self._sequence(command.condition)
            finally:
                self._testing -= 1
            if status is None:
                return self._maybe(lambda: int(not self._loop(command.body)))
            if (status == 0) == command.until or not self._loop(command.body):
                return 0

    def _case(self, command: Case) -> int | None:
        subject = self._expander.text(command.subject)
        if is_unknown(subject):
            ways: list[Callable[[], int | None]] = [partial(self._sequence, body) for _, body, _ in command.arms]
            whole = any(pattern.raw == "*" for patterns, _, _ in command.arms for pattern in patterns)
            return self._fork(ways if whole else [*ways, lambda: 0]) if ways else 0
        falling = False
        for patterns, body, terminator in command.arms:
            if falling or any(self._matches(subject, pattern) for pattern in patterns):
                status = self._sequence(body)
                if terminator == ";;":
                    return status
                falling = terminator == ";&"
        return 0

    def _matches(self, subject: str, pattern: Word) -> bool:
        return _match(subject, self._expander.pieces(pattern))

    # -- simple commands -------------------------------------------------------------------------------------------
    def _simple(self, node: Simple) -> int | None:
        self._step(node.line)
        self._check_assignment(node)
        if not node.words:
            status: int | None = 0
            for assignment in node.assignments:
                status = self._assign(assignment)
            for redirect in node.redirects:
                self._touch(redirect)
            return status
        first = node.words[0]
        if isinstance(first, Word) and first.raw in ("export", "declare", "typeset", "local", "readonly"):
            return self._declare(first.raw, node)
        fields = [item for word in node.words if isinstance(word, Word) for item in self._expander.fields(word)]
        for redirect in node.redirects:
            self._touch(redirect)
        if not fields:
            for assignment in node.assignments:
                self._assign(assignment)
            return 0
        return self._run(node, fields)

    def _touch(self, redirect: Redirect) -> None:
        """Expands a redirection's target, so that a variable missing there is noticed; nothing is opened."""
        if redirect.target is not None and redirect.operator not in ("<<", "<<-"):
            self._expander.text(redirect.target)

    def _check_assignment(self, node: Simple) -> None:
        raws = [word.raw for word in node.words if isinstance(word, Word)]
        if raws and node.source == 0:
            head = raws[0]
            text = " ".join([*(f"{a.name}={a.value.raw if a.value else ''}" for a in node.assignments), *raws])
            spaced = len(raws) > 1 and re.fullmatch(r"[A-Za-z_]\w*", head) and re.match(r"=(?!=)", raws[1])
            dollar = re.match(r"\$[A-Za-z_]\w*=", head)
            emptied = (
                node.assignments
                and node.assignments[-1].value is not None
                and not node.assignments[-1].value.raw
                and re.fullmatch(r"-?[\d.]+|True|False|true|false|[\"'].*[\"']", head)
            )
            dashed = re.match(r"[A-Za-z_][\w-]*-[\w-]*=|[A-Za-z_]\w*(\.\w+)+=", head) and not self.reading.hits
            exported = head in ("export", "declare", "local", "readonly") and any(raw == "=" for raw in raws[1:])
            if spaced or dollar or emptied or dashed or exported:
                self.reading.bad_assignments.append((node.line, text))
        if raws and (
            re.match(r"(\+{1,2})?[A-Za-z_][\w@/]*(\.[\w@/]+)+=", raws[0])
            or re.match(r"~?[a-z_]+(\.\w+){2,}\Z|--config-(name|path|dir)", raws[0])
            or (re.fullmatch(r"\"?\$\{?[@*]\}?\"?", raws[0]))
        ):
            self.reading.strays.append(Stray(node.line, raws[0], node.start, node.source, len(self.reading.hits)))

    def _assign(self, assignment: Assignment, *, export: bool | None = None, local: bool = False) -> int | None:
        name = assignment.name
        if local and self._scopes and name not in self._scopes[-1]:
            self._scopes[-1][name] = self.shell.variables.get(name)
            self.shell.variables.pop(name, None)
        old = self.shell.variables.get(name, Variable())
        exported = old.exported or bool(export) or "allexport" in self.shell.options
        if assignment.items is not None:
            self._assign_array(assignment, old, exported)
            return 0
        self._status = 0
        text = self._expander.text(assignment.value, assignment=True)
        if assignment.index is not None:
            items = dict(old.items or ((0, Field(old.text)),) if old.text is not None else old.items or ())
            index = self._expander.text(assignment.index).strip("\"'")
            key: int | str = index if old.associative else self._expander.index_value(index)
            before = items[key].text if assignment.append and key in items else ""
            items[key] = Field(before + text, line=assignment.line)
            self.shell.variables[name] = replace(old, items=tuple(items.items()), text=None)
            return 0
        if assignment.append and old.items is not None:
            items = dict(old.items)
            items[0] = Field((items[0].text if 0 in items else "") + text)
            self.shell.variables[name] = replace(old, items=tuple(items.items()))
            return 0
        if assignment.append:
            text = (old.scalar() or "") + text
        if is_unknown(text) and name in self._given:
            text = self._given[name]
        if old.items is not None:
            items = dict(old.items)
            items[0] = Field(text)
            self.shell.variables[name] = replace(old, items=tuple(items.items()), exported=exported)
        else:
            self.shell.variables[name] = Variable(text, exported=exported)
        if len(text) > 200_000:
            raise TooComplex("makes a very long value", line=assignment.line)
        return self._status

    def _assign_array(self, assignment: Assignment, old: Variable, exported: bool) -> None:
        items: dict[int | str, Field] = {}
        if assignment.append:
            items = dict(
                old.items if old.items is not None else ((0, Field(old.text)),) if old.text is not None else ()
            )
        position = max((key for key in items if isinstance(key, int)), default=-1) + 1
        for word in assignment.items or ():
            keyed = re.match(r"\[([^\]]*)\]=", word.raw)
            if keyed:
                key = keyed[1].strip("\"'")
                text = self._expander.text(word)
                value = text.partition("]=")[2]
                index: int | str = key if old.associative else self._expander.index_value(key)
                items[index] = Field(value, line=word.line)
                position = index + 1 if isinstance(index, int) else position
                continue
            for item in self._expander.fields(word):
                items[position] = item
                position += 1
        if len(items) > 5_000:
            raise TooComplex("makes a very long array", line=assignment.line)
        self.shell.variables[assignment.name] = Variable(None, tuple(items.items()), exported, old.associative)

    def _set(self, name: str, text: str) -> None:
        old = self.shell.variables.get(name, Variable())
        self.shell.variables[name] = Variable(text, exported=old.exported or "allexport" in self.shell.options)

    def _declare(self, kind: str, node: Simple) -> int:
        words = node.words[1:]
        flags = "".join(word.raw[1:] for word in words if isinstance(word, Word) and word.raw.startswith("-"))
        local = kind == "local" or (kind in ("declare", "typeset") and bool(self._scopes) and "g" not in flags)
        exporting = (kind == "export" and "n" not in flags) or "x" in flags
        for word in words:
            if isinstance(word, Assignment):
                if "A" in flags:
                    self.shell.variables[word.name] = Variable(None, (), exporting, True)
                self._assign(word, export=exporting, local=local)
                if "i" in flags:
                    self._integer(word)
                continue
            for item in self._expander.fields(word):
                name, equals, value = item.text.partition("=")
                if item.text.startswith("-") or not re.fullmatch(r"[A-Za-z_]\w*", name):
                    continue
                if local and self._scopes and name not in self._scopes[-1]:
                    self._scopes[-1][name] = self.shell.variables.get(name)
                    self.shell.variables.pop(name, None)
                old = self.shell.variables.get(name)
                if equals:
                    self.shell.variables[name] = Variable(value, exported=exporting or bool(old and old.exported))
                elif "A" in flags or "a" in flags:
                    self.shell.variables[name] = Variable(
                        None, old.items if old and old.items else (), exporting, "A" in flags
                    )
                elif old is not None:
                    exported = exporting or (old.exported and not (kind == "export" and "n" in flags))
                    self.shell.variables[name] = replace(old, exported=exported)
                elif exporting:
                    self.shell.variables[name] = Variable(None, exported=True)
        return 0

    def _integer(self, word: Assignment) -> None:
        variable = self.shell.variables.get(word.name)
        if variable is not None and variable.text is not None and not is_unknown(variable.text):
            value = arithmetic.evaluate(
                variable.text, self._lookup, lambda name, text: self._set(name, text), line=word.line
            )
            self.shell.variables[word.name] = replace(variable, text=str(value))

    def _lookup(self, name: str) -> str:
        variable = self.shell.variables.get(name)
        return (variable.scalar() or "") if variable is not None else ""

    def _run(self, node: Simple, fields: list[Field]) -> int | None:
        """Runs a builtin, a function, or notes a program that would be started."""
        name = fields[0].text
        if name in self.shell.functions:
            return self._with_temporary(node, lambda: self._call(name, fields))
        builtin = getattr(self, f"_do_{_METHODS.get(name, name)}", None) if name in _BUILTINS else None
        if builtin is not None:
            result: int | None = self._with_temporary(node, lambda: builtin(node, fields))
            return result
        return self._with_temporary(node, lambda: self._program(node, fields), export=True)

    def _with_temporary(self, node: Simple, run: Callable[[], int | None], *, export: bool = False) -> int | None:
        if not node.assignments:
            return run()
        saved = {assignment.name: self.shell.variables.get(assignment.name) for assignment in node.assignments}
        for assignment in node.assignments:
            self._assign(assignment, export=True)
        try:
            return run()
        finally:
            for name, variable in saved.items():
                if variable is None:
                    self.shell.variables.pop(name, None)
                else:
                    self.shell.variables[name] = variable

    def _call(self, name: str, fields: list[Field]) -> int | None:
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise TooComplex(f"calls functions or scripts more than {MAX_CALLS} deep", line=self._line)
        saved = self.shell.positional
        self.shell.positional = fields[1:]
        self._scopes.append({})
        try:
            return self._command(self.shell.functions[name])
        except _Return as stop:
            return stop.status
        finally:
            self._calls -= 1
            self.shell.positional = saved
            for variable, old in self._scopes.pop().items():
                if old is None:
                    self.shell.variables.pop(variable, None)
                else:
                    self.shell.variables[variable] = old

    def _program(self, node: Simple, fields: list[Field]) -> int | None:
        follows_links = fields[0].text in ("realpath", "readlink")
        known = _pure(fields, self.shell.cwd) if self.reads_files or not follows_links else None
        if known is not None:
            self._print(known)
            return 0
        found = find_launch([item.text for item in fields])
        if found is not None:
            self._hit(node, fields, found)
            return 0
        nested = nested_script([item.text for item in fields])
        if nested is not None and self._nested(
            node, fields, nested.wrappers, nested.kind, nested.text, nested.args, nested.env
        ):
            return 0
        self._skip(node)
        if self._output is not None:
            self._output_known = False
        self._works = name_of(fields) in _WORKS and not self._testing
        return None

    def _skip(self, node: Simple) -> None:
        if node.source == 0 and self._outer is None:
            text = " ".join(self.reading.texts[0][node.start : node.end].split())
            entry = (node.line, text[:300])
            if entry not in self.reading.skipped and len(self.reading.skipped) < 500:
                self.reading.skipped.append(entry)

    def _hit(self, node: Simple, fields: list[Field], found: Found) -> None:
        if len(self.reading.hits) >= MAX_LAUNCHES:
            raise TooComplex(f"launches more than {MAX_LAUNCHES} commands", line=node.line)
        env = self.shell.environment()
        line = next((item.line for item in fields[found.index :] if item.line), node.line)
        hit = Hit(
            node, tuple(fields), found, env, self.shell.cwd, (*self._wrappers, *found.wrappers),
            self._outer.line if self._outer is not None else line, bool(self._conditional), node.source, self._outer,
        )  # fmt: skip
        self.reading.hits.append(hit)

    def _nested(
        self,
        node: Simple,
        fields: list[Field],
        wrappers: tuple[str, ...],
        kind: str,
        text: str,
        args: Sequence[str],
        env: Mapping[str, str],
    ) -> bool:
        """Follows a script that another shell would run: `bash -c TEXT`, `bash FILE`, `bash <<EOF`. False: not readable."""
        if kind == "stdin":
            body = next((r for r in reversed(node.redirects) if r.operator in ("<<", "<<-", "<<<")), None)
            if body is None:
                return False
            text = self._expander.text(body.body) if body.body is not None else self._expander.text(body.target)
        elif kind == "file":
            read = self._read_file(text)
            if read is None:
                return False
            text = read
        if is_unknown(text) and kind == "file":
            return False
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise TooComplex(f"calls functions or scripts more than {MAX_CALLS} deep", line=node.line)
        self.reading.texts.append(text)
        number = len(self.reading.texts) - 1
        saved, outer, wrapped = self.shell, self._outer, self._wrappers
        child = variables_of({**saved.environment(), **env})
        positional = [Field(arg, line=node.line) for arg in args]
        self.shell = Shell(child, positional, saved.cwd, name="bash")
        self._outer = outer or node
        self._wrappers = (*wrapped, *wrappers)
        before = len(self.reading.hits)
        try:
            tree = parse_script(text, source=number)
            self._sequence(tree)
        except _Stop:
            pass
        finally:
            self.shell, self._outer, self._wrappers = saved, outer, wrapped
            self._calls -= 1
        if len(self.reading.hits) == before:
            self._skip(node)
        return True

    def _read_file(self, path: str) -> str | None:
        if is_unknown(path) or (is_unknown(self.shell.cwd) and not path.startswith("/")):
            return None
        full = posixpath.normpath(posixpath.join(self.shell.cwd, path))
        if full in self._written:
            return self._written[full]
        if not self.reads_files:
            return None
        try:
            if not os.path.isfile(full) or os.path.getsize(full) > 262_144:
                return None
            with open(full, encoding="utf-8", errors="surrogateescape", newline="") as handle:
                return handle.read().replace("\r\n", "\n").removeprefix("\ufeff")
        except (OSError, ValueError):
            return None

    # -- command substitution --------------------------------------------------------------------------------------
    def _substitution(self, part: CommandSubstitution) -> str | None:
        saved, output, known, scopes = self.shell, self._output, self._output_known, self._scopes
        self.shell = saved.fork()
        self._output, self._output_known = [], True
        if not part.body.statements:
            self._output_known = True
        hits, skipped = len(self.reading.hits), len(self.reading.skipped)
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise TooComplex(f"calls functions or scripts more than {MAX_CALLS} deep", line=part.line)
        try:
            status: int | None = self._sequence(part.body)
        except _Stop as stop:
            status = stop.status
        finally:
            self._calls -= 1
            printed, complete = "".join(self._output or []), self._output_known
            self.shell, self._output, self._output_known, self._scopes = saved, output, known, scopes
        del self.reading.hits[hits:]
        self._status = status
        if complete:
            return printed
        del self.reading.skipped[skipped:]
        return None

    def _print(self, text: str) -> None:
        if self._output is not None:
            self._output.append(text)
            if sum(map(len, self._output[-50:])) > 200_000:
                raise TooComplex("prints a very long text", line=self._line)

    # -- builtins --------------------------------------------------------------------------------------------------
    def _do_true(self, node: Simple, fields: list[Field]) -> int | None:
        return 0

    def _do_false(self, node: Simple, fields: list[Field]) -> int | None:
        return 1

    def _do_echo(self, node: Simple, fields: list[Field]) -> int | None:
        if _to_stderr(node):
            return 0
        words = [item.text for item in fields[1:]]
        newline = True
        while words and re.fullmatch(r"-[neE]+", words[0]):
            newline &= "n" not in words.pop(0)
        self._print(" ".join(words) + ("\n" if newline else ""))
        return 0

    def _do_printf(self, node: Simple, fields: list[Field]) -> int | None:
        words = [item.text for item in fields[1:]]
        target = None
        if words[:1] == ["-v"]:
            target, words = words[1] if len(words) > 1 else "", words[2:]
        text = _printf(words)
        if target:
            self._set(target, unknown(f"${target}") if text is None else text)
        elif text is None:
            self._output_known = False
        elif not _to_stderr(node):
            self._print(text)
        return 0

    def _do_cd(self, node: Simple, fields: list[Field]) -> int | None:
        targets = [item.text for item in fields[1:] if item.text not in ("-P", "-L", "--")]
        target = targets[0] if targets else self._lookup("HOME")
        if target == "-":
            self.shell.cwd = self._lookup("OLDPWD") or unknown("$OLDPWD")
        elif target:
            self._set("OLDPWD", self.shell.cwd)
            joined = target if target.startswith(("/", "\ud800")) else f"{self.shell.cwd}/{target}"
            self.shell.cwd = joined if is_unknown(joined) else posixpath.normpath(joined)
        return 0

    def _do_pushd(self, node: Simple, fields: list[Field]) -> int | None:
        self._set("AUTOTUNE_PUSHED", self.shell.cwd)
        return self._do_cd(node, fields)

    def _do_popd(self, node: Simple, fields: list[Field]) -> int | None:
        self.shell.cwd = self._lookup("AUTOTUNE_PUSHED") or self.shell.cwd
        return 0

    def _do_pwd(self, node: Simple, fields: list[Field]) -> int | None:
        self._print(self.shell.cwd + "\n")
        return 0

    def _do_unset(self, node: Simple, fields: list[Field]) -> int | None:
        functions = any(item.text == "-f" for item in fields)
        for item in fields[1:]:
            name, bracket, index = item.text.partition("[")
            if functions:
                self.shell.functions.pop(name, None)
            elif bracket and (variable := self.shell.variables.get(name)) and variable.items is not None:
                key = index[:-1] if variable.associative else self._expander.index_value(index[:-1])
                self.shell.variables[name] = replace(variable, items=tuple(i for i in variable.items if i[0] != key))
            else:
                self.shell.variables.pop(name, None)
        return 0

    def _do_set(self, node: Simple, fields: list[Field]) -> int | None:
        words = list(fields[1:])
        options = set(self.shell.options)
        letters = {"e": "errexit", "u": "nounset", "x": "xtrace", "a": "allexport", "f": "noglob"}
        while words:
            text = words[0].text
            if text == "--":
                words.pop(0)
                self.shell.positional = words
                break
            if not re.match(r"[-+][A-Za-z]", text):
                self.shell.positional = words
                break
            words.pop(0)
            change = options.add if text[0] == "-" else options.discard
            for letter in text[1:]:
                if letter == "o" and words:
                    change(words.pop(0).text)
                elif letter in letters:
                    change(letters[letter])
        self.shell.options = frozenset(options)
        return 0

    def _do_shift(self, node: Simple, fields: list[Field]) -> int | None:
        count = int(fields[1].text) if len(fields) > 1 and re.fullmatch(r"\d{1,4}", fields[1].text) else 1
        if count > len(self.shell.positional):
            return 1
        self.shell.positional = self.shell.positional[count:]
        return 0

    def _do_source(self, node: Simple, fields: list[Field]) -> int | None:
        if len(fields) < 2:
            return 1
        path = fields[1].text
        text = self._read_file(path)
        if text is None:
            self._skip(node)
            self._works = not self._testing
            return None
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise TooComplex(f"sources files more than {MAX_CALLS} deep", line=node.line)
        self.reading.texts.append(text)
        saved, positional = self.shell.sources, self.shell.positional
        self.shell.sources = (*saved, path)
        if len(fields) > 2:
            self.shell.positional = fields[2:]
        outer = self._outer
        self._outer = outer or node
        try:
            tree = parse_script(text, source=len(self.reading.texts) - 1)
            return self._sequence(tree)
        except LaunchError as error:
            if error.code == "SHELL_SYNTAX":
                self._outer = outer
                self._skip(node)
                return None
            raise
        except _Return as stop:
            return stop.status
        finally:
            self._calls -= 1
            self._outer = outer
            self.shell.sources, self.shell.positional = saved, positional

    def _do_eval(self, node: Simple, fields: list[Field]) -> int | None:
        text = " ".join(item.text for item in fields[1:])
        if is_unknown(text) and not find_launch(text.split()):
            self._skip(node)
            return None
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise TooComplex(f"evaluates text more than {MAX_CALLS} deep", line=node.line)
        self.reading.texts.append(text)
        outer = self._outer
        self._outer = outer or node
        try:
            return self._sequence(parse_script(text, source=len(self.reading.texts) - 1))
        except LaunchError as error:
            if error.code == "SHELL_SYNTAX":
                self._outer = outer
                self._skip(node)
                return None
            raise
        finally:
            self._calls -= 1
            self._outer = outer

    def _do_exec(self, node: Simple, fields: list[Field]) -> int | None:
        rest = fields[1:]
        if rest:
            before = len(self.reading.hits)
            self._run(node, rest)
            if len(self.reading.hits) > before or not self._conditional:
                raise _Exit(0)
        return 0

    def _do_command(self, node: Simple, fields: list[Field]) -> int | None:
        rest = fields[1:]
        self._works = False
        if rest and rest[0].text in ("-v", "-V", "-p"):
            self._output_known = False
            return None
        return self._run(node, rest) if rest else 0

    def _do_exit(self, node: Simple, fields: list[Field]) -> int | None:
        raise _Exit(_status_of(fields))

    def _do_return(self, node: Simple, fields: list[Field]) -> int | None:
        raise _Return(_status_of(fields))

    def _do_break(self, node: Simple, fields: list[Field]) -> int | None:
        raise _Break(0, _status_of(fields) or 1)

    def _do_continue(self, node: Simple, fields: list[Field]) -> int | None:
        raise _Continue(0, _status_of(fields) or 1)

    def _do_test(self, node: Simple, fields: list[Field]) -> int | None:
        self._works = False
        words = [item.text for item in fields[1:]]
        if fields[0].text == "[" and words[-1:] == ["]"]:
            words.pop()
        return _Test(self, node.line).single(words)

    def _do_let(self, node: Simple, fields: list[Field]) -> int | None:
        value = 0
        for item in fields[1:]:
            if is_unknown(item.text):
                return None
            value = arithmetic.evaluate(item.text, self._lookup, self._set, line=node.line)
        return int(value == 0)

    def _do_read(self, node: Simple, fields: list[Field]) -> int | None:
        array = any(re.fullmatch(r"-\w*a", item.text) for item in fields)
        valued = re.compile(r"-\w*[dnNptu]")
        names, skip = [], False
        for item in fields[1:]:
            if skip:
                skip = False
            elif item.text.startswith("-"):
                skip = bool(valued.fullmatch(item.text))
            else:
                names.append(item.text)
        names = names or ["REPLY"]
        text = self._input(node)
        if text is None:
            if self._pipe_input:
                for name in names:
                    self._set(name, unknown(f"${name}"))
                return None
            for name in names:
                self._set(name, unknown(f"${name}"))
            return 0
        whole = any(item.text == "" for item in fields[1:])
        line = text if whole else text.split("\n")[0]
        pieces = line.split()
        if array:
            self.shell.variables[names[-1]] = Variable(None, tuple((i, Field(p)) for i, p in enumerate(pieces)))
            return 0
        for at, name in enumerate(names):
            rest = line.split(None, at)[at] if len(pieces) > at else ""
            self._set(name, rest.strip() if at == len(names) - 1 else (pieces[at] if at < len(pieces) else ""))
        return int(whole or not text)

    def _do_mapfile(self, node: Simple, fields: list[Field]) -> int | None:
        names = [item.text for item in fields[1:] if not item.text.startswith("-")]
        name = names[-1] if names else "MAPFILE"
        text = self._input(node)
        if text is None:
            self.shell.variables[name] = Variable(None, ((0, Field(unknown(f"${{{name}[@]}}"))),))
            return None
        lines = text.split("\n")
        lines = lines[:-1] if lines[-1] == "" else lines
        self.shell.variables[name] = Variable(None, tuple((i, Field(t)) for i, t in enumerate(lines)))
        return 0

    def _input(self, node: Simple) -> str | None:
        for redirect in [*reversed(node.redirects), *reversed(self._pipe_input)]:
            if redirect.operator in ("<<", "<<-") and redirect.body is not None:
                text = self._expander.text(redirect.body)
                return None if is_unknown(text) else text
            if redirect.operator == "<<<" and redirect.target is not None:
                text = self._expander.text(redirect.target) + "\n"
                return None if is_unknown(text) else text
            return None
        return None

    def _do_getopts(self, node: Simple, fields: list[Field]) -> int | None:
        if not any(item.text.startswith("-") for item in self.shell.positional):
            return 1
        return None

    def _do_cat(self, node: Simple, fields: list[Field]) -> int | None:
        target = [r for r in node.redirects if r.operator in (">", ">>", ">|")]
        text = self._input(node) if len(fields) == 1 else None
        name = self._expander.text(target[-1].target) if target else ""
        if text is not None and name and not is_unknown(name + self.shell.cwd) and len(self._written) < 50:
            full = posixpath.normpath(posixpath.join(self.shell.cwd, name))
            self._written[full] = (self._written.get(full, "") if target[-1].operator == ">>" else "") + text
        if target or text is None:
            self._skip(node)
            self._output_known &= bool(target)
            return None if not target else 0
        self._print(text)
        return 0


_METHODS = {
    ".": "source", ":": "true", "[": "test", "readarray": "mapfile", "builtin": "command",
    "shopt": "true", "trap": "true", "wait": "true", "alias": "true", "ulimit": "true", "umask": "true", "sleep": "true", "hash": "true",
    "clear": "true", "date": "unknown_date",
}  # fmt: skip
_BUILTINS = {
    ".", ":", "[", "test", "true", "false", "echo", "printf", "cd", "pushd", "popd", "pwd", "unset", "set", "shift", "source", "eval",
    "exec", "command", "builtin", "exit", "return", "break", "continue", "let", "read", "mapfile", "readarray", "getopts", "cat",
    "shopt", "trap", "wait", "alias", "ulimit", "umask", "sleep", "hash", "clear",
}  # fmt: skip


_WORKS = {
    "mkdir", "rm", "cp", "mv", "ln", "touch", "chmod", "chown", "pip", "pip3", "uv", "git", "module", "conda", "mamba", "tar", "unzip", "wget",
    "apt", "apt-get", "huggingface-cli", "hf", "modelscope", "tee", "sync", "make", "wandb", "ulimit", "rsync", "sed", "scp",
}  # fmt: skip


def name_of(fields: Sequence[Field]) -> str:
    """The program's name without its folder."""
    return posixpath.basename(fields[0].text)


def _ends(pipeline: Pipeline) -> bool:
    """Whether the script would stop there (`|| exit 1`, `|| { echo …; exit 1; }`)."""
    command = pipeline.commands[-1]
    if isinstance(command, Group) and command.body.statements:
        return _ends(command.body.statements[-1].pipelines[-1])
    if isinstance(command, Simple) and command.words and isinstance(command.words[0], Word):
        return command.words[0].raw in ("exit", "return", "true", ":")
    return False


def _to_stderr(node: Simple) -> bool:
    return any(redirect.operator in (">&", ">", ">>", "&>", "&>>") for redirect in node.redirects)


def _status_of(fields: list[Field]) -> int:
    return int(fields[1].text) & 255 if len(fields) > 1 and re.fullmatch(r"\d{1,6}", fields[1].text) else 0


def _match(subject: str, pieces: list[tuple[str, bool]]) -> bool:
    if len(subject) > 5_000:
        raise TooComplex("compares a very long value with a pattern")
    return re.fullmatch(glob_regex(pieces), subject, re.DOTALL) is not None


def _printf(words: list[str]) -> str | None:
    if not words or any(is_unknown(word) for word in words):
        return None if words else ""
    spec, values = words[0], words[1:]
    spec = re.sub(r"\\([nt\\\"'])", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]), spec)
    out = []
    for _ in range(1_000):
        used = False

        def one(match: re.Match[str]) -> str:
            nonlocal used
            if match[2] == "%":
                return "%"
            used = True
            value = values.pop(0) if values else ""
            if match[2] in "di":
                return f"%{match[1]}d" % int(value or 0)
            if match[2] in "feg":
                return f"%{match[1]}{match[2]}" % float(value or 0)
            if match[2] in "xX":
                return f"%{match[1]}{match[2]}" % int(value or 0)
            return f"%{match[1]}s" % value

        if re.search(r"%[-+ 0#]*\d{4,}|%[^%]*\.\d{4,}", spec):
            return None
        try:
            out.append(re.sub(r"%([-+ 0#]*\d*(?:\.\d+)?)([a-zA-Z%])", one, spec))
        except ValueError:
            return None
        if not values or not used:
            return "".join(out)
    return None


def _pure(fields: list[Field], cwd: str) -> str | None:
    """What small programs print that depend on their arguments alone."""
    words = [item.text for item in fields]
    if any(is_unknown(word) for word in words):
        return None
    name, args = words[0], words[1:]
    if name == "dirname" and len(args) == 1:
        return (posixpath.dirname(args[0].rstrip("/")) or ("/" if args[0].startswith("/") else ".")) + "\n"
    if name == "basename" and args and not args[0].startswith("-"):
        base = posixpath.basename(args[0].rstrip("/"))
        return (base.removesuffix(args[1]) if len(args) > 1 and base != args[1] else base) + "\n"
    if (
        name in ("realpath", "readlink")
        and len([a for a in args if not a.startswith("-")]) == 1
        and (name == "realpath" or "-f" in args)
    ):
        path = next(a for a in args if not a.startswith("-"))
        return None if is_unknown(cwd) else os.path.realpath(posixpath.join(cwd, path)) + "\n"
    if name == "seq" and 1 <= len(args) <= 3 and all(re.fullmatch(r"-?\d{1,6}", a) for a in args):
        numbers = [int(a) for a in args]
        first, step, last = (
            (1, 1, numbers[0])
            if len(numbers) == 1
            else (numbers[0], 1, numbers[1])
            if len(numbers) == 2
            else tuple(numbers)
        )
        if step == 0 or abs(last - first) // abs(step) > 5_000:
            return None
        return "".join(f"{n}\n" for n in range(first, last + (1 if step > 0 else -1), step))
    if (
        name == "expr"
        and len(args) == 3
        and args[1] in "+-*/%"
        and all(re.fullmatch(r"-?\d{1,15}", a) for a in (args[0], args[2]))
    ):
        return f"{arithmetic.evaluate(''.join(args), lambda n: '', lambda n, v: None, line=0)}\n"
    return None


class _Test:
    """`test`, `[` and `[[`. Statuses: 0 true, 1 false, None only a shell can know."""

    def __init__(self, evaluator: Evaluator, line: int) -> None:
        self._e = evaluator
        self._line = line
        self._at = 0
        self._tokens: list[Word | str] = []
        self._double = False
        self._depth = 0

    def single(self, words: list[str]) -> int | None:
        if not words:
            return 1
        if len(words) == 1:
            return _status(None if is_unknown(words[0]) else words[0] != "")
        if len(words) == 3 and words[1] in _BINARY:
            return _status(self._binary(words[0], words[1], words[2], None))
        if len(words) == 2:
            return (
                _status(_not(None if is_unknown(words[1]) else words[1] != ""))
                if words[0] == "!"
                else _status(self._unary(words[0], words[1]))
            )
        self._tokens = list(words)
        return _status(self._or())

    def double(self, tokens: tuple[Word | str, ...]) -> int | None:
        self._double = True
        self._tokens = list(tokens)
        return _status(self._or())

    def _peek(self) -> str | None:
        if self._at >= len(self._tokens):
            return None
        token = self._tokens[self._at]
        return token if isinstance(token, str) else token.raw

    def _or(self) -> bool | None:
        self._depth += 1
        if self._depth > 30:
            raise TooComplex("nests conditions too deeply", line=self._line)
        value = self._and()
        while self._peek() in ("||", "-o"):
            self._at += 1
            right = self._and()
            value = True if value is True or right is True else (None if value is None or right is None else False)
        self._depth -= 1
        return value

    def _and(self) -> bool | None:
        value = self._not()
        while self._peek() in ("&&", "-a"):
            self._at += 1
            right = self._not()
            value = False if value is False or right is False else (None if value is None or right is None else True)
        return value

    def _not(self) -> bool | None:
        flips = 0
        while self._peek() == "!":
            self._at += 1
            flips += 1
        value = self._primary()
        return _not(value) if flips % 2 else value

    def _primary(self) -> bool | None:
        token = self._peek()
        if token is None:
            raise LaunchError("SHELL_SYNTAX", f"line {self._line}: a condition ends too early", line=self._line)
        if token == "(":
            self._at += 1
            value = self._or()
            self._at += 1
            return value
        if token in _UNARY and self._at + 1 < len(self._tokens) and self._peek_at(1) not in ("&&", "||", ")"):
            follows = self._peek_at(1)
            if not (follows in _BINARY and self._at + 2 < len(self._tokens)):
                self._at += 2
                return self._unary(token, self._text(self._at - 1))
        left = self._text(self._at)
        self._at += 1
        operator = self._peek()
        if operator in _BINARY and self._at + 1 < len(self._tokens):
            self._at += 2
            right = self._tokens[self._at - 1]
            if self._double and isinstance(right, Word) and operator in ("==", "=", "!="):
                return self._pattern(left, operator, right)
            if self._double and isinstance(right, Word) and operator == "=~":
                return self._regex(left, right)
            return self._binary(left, operator or "", self._text(self._at - 1), right)
        return None if is_unknown(left) else left != ""

    def _peek_at(self, ahead: int) -> str:
        token = self._tokens[self._at + ahead]
        return token if isinstance(token, str) else token.raw

    def _text(self, at: int) -> str:
        token = self._tokens[at]
        return token if isinstance(token, str) else self._e._expander.text(token)

    def _pattern(self, left: str, operator: str, right: Word) -> bool | None:
        pieces = self._e._expander.pieces(right)
        if is_unknown(left) or any(is_unknown(text) for text, _ in pieces):
            return None
        return _match(left, pieces) == (operator != "!=")

    def _regex(self, left: str, right: Word) -> bool | None:
        pieces = self._e._expander.pieces(right)
        if is_unknown(left) or any(is_unknown(text) for text, _ in pieces):
            return None
        expression = "".join(re.escape(text) if quoted else text for text, quoted in pieces)
        if (
            len(left) > 500
            or len(expression) > 200
            or re.search(r"[*+}]\)?[*+{]", expression)
            or expression.count("*") + expression.count("+") > 6
        ):
            return None
        for name, body in (("digit", "0-9"), ("alpha", "a-zA-Z"), ("alnum", "a-zA-Z0-9"), ("space", r"\s")):
            expression = expression.replace(f"[:{name}:]", body)
        try:
            match = re.search(expression, left)
        except re.error:
            return None
        if match:
            groups = [match[0], *(group or "" for group in match.groups())]
            self._e.shell.variables["BASH_REMATCH"] = Variable(None, tuple((i, Field(g)) for i, g in enumerate(groups)))
        return match is not None

    def _unary(self, operator: str, value: str) -> bool | None:
        if operator == "-v":
            return value.partition("[")[0] in self._e.shell.variables
        if is_unknown(value):
            return True if operator == "-n" and shown(value) and value[0] != "\ud800" else None
        if operator == "-n":
            return value != ""
        if operator == "-z":
            return value == ""
        if operator == "-t":
            return False
        if operator == "-o":
            return value in self._e.shell.options
        if operator in _FILES:
            if is_unknown(self._e.shell.cwd) or not self._e.reads_files:
                return None
            path = posixpath.join(self._e.shell.cwd, value)
            try:
                return bool(value) and _FILES[operator](path)
            except (OSError, ValueError):
                return False
        return None

    def _binary(self, left: str, operator: str, right: str, _: object) -> bool | None:
        if is_unknown(left) or is_unknown(right):
            return None
        if operator in ("=", "==", "!="):
            return (left == right) == (operator != "!=")
        if operator in ("<", ">"):
            return left < right if operator == "<" else left > right
        if operator in _NUMBERS:
            numbers = []
            for text in (left, right):
                if re.fullmatch(r"\s*-?\d{1,18}\s*", text):
                    numbers.append(int(text))
                elif self._double:
                    try:
                        numbers.append(arithmetic.evaluate(text, self._e._lookup, self._e._set, line=self._line))
                    except arithmetic.Unknown:
                        return None
                else:
                    return False
            return _NUMBERS[operator](*numbers)
        return None


def _status(value: bool | None) -> int | None:
    return None if value is None else int(not value)


def _not(value: bool | None) -> bool | None:
    return None if value is None else not value


_NUMBERS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_FILES: dict[str, Callable[[str], bool]] = {
    "-e": os.path.exists,
    "-f": os.path.isfile,
    "-d": os.path.isdir,
    "-L": os.path.islink,
    "-h": os.path.islink,
    "-r": lambda path: os.access(path, os.R_OK),
    "-w": lambda path: os.access(path, os.W_OK),
    "-x": lambda path: os.access(path, os.X_OK),
    "-s": lambda path: os.path.exists(path) and os.path.getsize(path) > 0,
}
_BINARY = {"=", "==", "!=", "<", ">", "=~", "-nt", "-ot", "-ef", *_NUMBERS}
_UNARY = {"-n", "-z", "-v", "-t", "-o", "-p", "-S", "-b", "-c", "-u", "-g", "-k", "-O", "-G", "-N", "-R", *_FILES}
