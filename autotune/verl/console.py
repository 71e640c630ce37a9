"""Lines of a verl console log: what stands around the message, and the step lines among them.

A step line is `step:N - name:value - name:value …` (`verl/utils/logger/aggregate_logger.py`): three decimals up to 0.4.1, `pprint` after it,
so that numpy 2 scalars read `np.float64(0.31)`. Ray puts `(TaskRunner pid=…, ip=…) ` before it, and anything may stand before that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from autotune.verl.jsonl import parse_line
from autotune.verl.metrics import LoggedStep

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Za-z0-9]|[@-Z\\-_])")
_ACTOR = re.compile(
    r"\((?:(?P<who>[A-Za-z_][\w.<> -]{0,80}?)(?:, ?rank=\d+)? )?pid=[\w.-]+(?:, ip=[\w.:\[\]-]+)?\) ?"
    r"|\((?P<daemon>raylet|autoscaler|gcs_server|dashboard)(?:[ ,+][^()]{0,60})?\) ?"
)
_HEAD = re.compile(
    r"(?:\s+"
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?"
    r"|(?:stdout|stderr) [FP] "
    r"|\[(?:rank|default|node)?\d+\]:?"
    r"|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)(?: \d\d-\d\d(?: \d\d:\d\d:\d\d)?)?(?: (?:\[[\w.]+:\d+\]|[\w.]+:\d+\]))?:?(?= |$)"
    r"|- (?:INFO|WARNING|ERROR|DEBUG|CRITICAL) - (?:[\w.]+ - )?"
    r"|\[[\w./-]+:\d+\]"
    r"|\d{1,4}: (?=\S)"
    r")+"
)
_REPEATED = re.compile(r" ?\[repeated \d+x across (?:the )?cluster\].*\Z", re.DOTALL)


def strip_ansi(text: str) -> str:
    """`text` without terminal escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text


def split_prefix(text: str) -> tuple[str, str]:
    """(who printed the line, its message) without colours, timestamps, log levels and the prefixes of Ray and vLLM.

    Who is the name of the Ray actor or engine process, such as `TaskRunner` or `EngineCore_DP0`; `""` for the driver itself.
    """
    text = strip_ansi(text).rstrip("\r\n")
    who, end = "", 0
    for match in _ACTOR.finditer(text, 0, 400):
        if who and match.start() != end and text[end : match.start()].strip():
            break
        who, end = match["who"] or match["daemon"] or "actor", match.end()
    message = text[end:]
    if head := _HEAD.match(message):
        message = message[head.end() :]
    return who, _REPEATED.sub("", message) if "[repeated " in message else message


_STEP_START = re.compile(r"step:(?P<step>-?\d{1,12})(?: -(?: |$)|$)")
_PROGRESS_END = re.compile(r"(?:it/s|s/it|\?it|steps?/s)(?:, [^\]]{0,200})?\]\s*\Z")
_NUMPY = re.compile(r"(?:np|numpy)\.\w+\((?P<number>[^()]*)\)\Z|(?:array|tensor)\((?P<other>[^(),]*)(?:,[^()]*)?\)\Z")
_FOLLOWED = re.compile(
    r"(?P<name>\S.*?):(?P<number>-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|nan|inf)|(?:np|numpy)\.\w+\([^()]*\))(?P<rest>[^\d.].*)\Z",
    re.DOTALL,
)
_TRAINING_KEYS = (
    "timing_s/step",
    "perf/time_per_step",
    "perf/throughput",
    "timing_s/gen",
    "timing/gen",
    "timing_s/update_actor",
)
_VALIDATION = re.compile(r"(?:val|validation)[-_/]")
_SUPERVISED = re.compile(r"(?:train|val)/")
_NO_NUMBER = ("True", "False", "None")
_MAX_STEP_TEXT = 1 << 20


def step_message(line: str) -> tuple[str, str] | None:
    """(who printed it, `step:…` and what follows) of a line that a step line may begin; None for any other.

    Only timestamps, log levels, a progress bar and Ray's prefix may stand between the beginning of the line, or Ray's prefix, and `step:`.
    Text that a model generated is printed behind the prefix too, but with words before a `step:` of its own.
    """
    at = line.find("step:")
    if at < 0:
        return None
    who, message = split_prefix(line)
    if message.startswith("step:"):
        return who, message
    before, mark, after = message.partition("step:")
    return (who, mark + after) if _PROGRESS_END.search(before) else None


def parse_step(message: str) -> LoggedStep | None:
    """The step of a whole step line without its prefix; None for text that merely looks like one.

    Every part has to be `name:number`; what another process printed behind the last number is cut off. A training step has a timer or
    a throughput, a validation (before training, or a run that only validates) has names of validation alone.
    """
    start = _STEP_START.match(message)
    if start is None:
        return None
    metrics: dict[str, float | None] = {}
    for part in message[start.end() :].split(" - "):
        name, _, text = part.rpartition(":")
        number = _number(text)
        if number is not None and name:
            metrics[name.lstrip()] = number
        elif text not in _NO_NUMBER:
            cut = _FOLLOWED.match(part)
            if cut is not None and (number := _number(cut["number"])) is not None:
                metrics[cut["name"]] = number
            break
    return LoggedStep(int(start["step"]), metrics) if _is_verl(metrics) else None


def _is_verl(metrics: Mapping[str, float | None]) -> bool:
    if any(name in metrics for name in _TRAINING_KEYS):
        return True
    return bool(metrics) and (all(map(_VALIDATION.match, metrics)) or all(map(_SUPERVISED.match, metrics)))


def _number(text: str) -> float | None:
    try:
        return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else float(text)
    except ValueError:
        pass
    if (wrapped := _NUMPY.match(text)) is not None:
        inner = wrapped["number"] if wrapped["number"] is not None else wrapped["other"]
        try:
            return float(inner)
        except ValueError:
            return None
    return None


class StepAssembler:
    """Puts step lines together that a terminal or a collector of logs has broken into several.

    A step line is kept until a line comes that cannot belong to it, so `flush` has to be called at the end.
    """

    def __init__(self) -> None:
        self._who = ""
        self._text: str | None = None
        self._first_width = 0
        self._last_width = 0
        self._parts = 0
        self._seen_width = 0
        """Where the log is known to break its lines; 0: not known."""

    @property
    def open(self) -> bool:
        """Whether a step line waits for what follows it."""
        return self._text is not None

    def feed(self, line: str) -> tuple[LoggedStep | None, bool]:
        """(a step that this line shows to be complete, whether the line itself is part of a step)."""
        if self._text is not None and self._continue(line):
            return None, True
        done = self.flush()
        found = step_message(line)
        if found is None or _STEP_START.match(found[1]) is None:
            return done, False
        self._who, self._text = found
        self._first_width = self._last_width = len(strip_ansi(line).rstrip("\r\n"))
        self._parts = 1
        return done, True

    def flush(self) -> LoggedStep | None:
        """The step that was waiting, if it is one."""
        text, self._text = self._text, None
        return parse_step(text.rstrip()) if text is not None else None

    def _continue(self, line: str) -> bool:
        """Takes the line as the next part of the step, where the grammar of a step line leaves no other reading."""
        text = self._text
        if text is None or len(text) > _MAX_STEP_TEXT:
            return False
        plain = strip_ansi(line).rstrip("\r\n")
        who, message = split_prefix(plain)
        if who and who != self._who:
            return False
        full = self._last_width == self._first_width
        joined = _joined(
            text,
            message if who else plain,
            bare=not who,
            broken=self._parts > 1 or self._seen_width == self._first_width,
            broken_here=full and (self._parts > 1 or self._seen_width == self._first_width),
            goes_on=full and len(plain) >= self._first_width,
        )
        if joined is None:
            return False
        if full:
            self._seen_width = self._first_width
        self._text, self._last_width, self._parts = joined, len(plain), self._parts + 1
        return True


_PAIR = re.compile(
    r"\S{1,400}:(?:-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|nan|inf)|(?:np|numpy)\.\w+\([^()]*\)|True|False|None)\Z"
)
_PART = re.compile(
    r"[\w@.+/()-]{0,400}(?::(?:-?(?:\d+(?:\.\d*)?(?:[eE][+-]?)?|n|na|i|in|)|n|np|nu|num|nump|numpy|(?:np|numpy)\.\w*(?:\([^()\s]*)?))?\Z"
)
_NEXT_PAIR = re.compile(r"- [A-Za-z_][\w@.+-]*/|-\s*\Z|- [A-Za-z_][\w@.+-]*\Z")
_NAMES = re.compile(r"(?:^|- )\s*([A-Za-z_]\S*/\S*?):(?=[-\dni]|\Z)")
_DIGITS = re.compile(r"[\d.]+(?=[^\d.:]*\Z)")
_MAX_DIGITS = 17
"""Python prints a float with 17 significant digits at most: a longer number is two."""
_MORE_OF_NUMBER = re.compile(r"[\d.eE+)-]*[\d)] - [A-Za-z_]|[\d.eE+)-]*[\d)] -?\Z")


def _joined(text: str, body: str, *, bare: bool, broken: bool, broken_here: bool, goes_on: bool) -> str | None:
    """The step line `text` with the next line, or None where that is another line.

    `bare`: the next line has no prefix of its own; `broken`: the step has been broken before; `broken_here`: the log is known to break lines at the width that the last part has; `goes_on`: this part has that width as well.
    """
    start = body.lstrip()
    last = text.rpartition(" - ")[2]
    in_a_name = bare and goes_on and body == start and last.endswith("_")  # `training/global_` + `step:3 - …`
    if not start or (_STEP_START.match(start) and not in_a_name):
        return None
    if _PAIR.match(last.rstrip()):
        if last.startswith("perf/throughput:") and not broken:
            return None  # verl's last metric on a line that was not broken before
        if any(f" - {name}:" in text for name in _NAMES.findall(body)):
            return None  # a whole step and a piece of another one: no step names a metric twice
        whole = f"{last.rstrip()} {start}" if _NEXT_PAIR.match(start) else last + body
        end = whole.rstrip().removesuffix(" -").rpartition(" - ")[2]
        if not goes_on and not _PAIR.match(end):
            return None  # only a line that is full breaks within a name or number
        if _NEXT_PAIR.match(start):
            return _checked(text, last, body) or _checked(text.rstrip() + " ", last.rstrip() + " ", start)
        if last != last.rstrip() or body != start:
            return None
        digits = _DIGITS.search(last + body.partition(" ")[0])
        if digits is not None and len(digits[0].replace(".", "").lstrip("0")) > _MAX_DIGITS:
            return None
        have = _DIGITS.search(last)
        entire = have is not None and len(have[0].replace(".", "").lstrip("0")) >= _MAX_DIGITS - 2
        if not broken_here and (entire or not _MORE_OF_NUMBER.match(body)):
            return None
        return _checked(text, last, body)
    if ":" not in last and ":" not in body and not goes_on:
        return None
    return _checked(text, last, body) or (
        _checked(text.rstrip() + " ", last.rstrip() + " ", start) if last.rstrip().endswith("-") else None
    )


def _checked(text: str, last: str, body: str) -> str | None:
    """`text` + `body`, where what follows the last mark of `text` reads as pairs and at most one unfinished pair."""
    *pairs, rest = (last + body).split(" - ")
    rest = rest.rstrip()
    rest = rest[:-2] if rest.endswith(" -") else rest
    return text + body if all(map(_PAIR.match, pairs)) and (_PAIR.match(rest) or _PART.match(rest)) else None


class ConsoleReader:
    """Turns lines into steps, of the console and of the file logger alike, and into the other lines, in order."""

    def __init__(self) -> None:
        self._steps = StepAssembler()

    @property
    def open(self) -> bool:
        """Whether the next line is needed whatever it holds: a step may go on in it."""
        return self._steps.open

    def feed(self, line: str) -> Iterator[LoggedStep | str]:
        """What this line completes: a step, or the line itself. Carriage returns of progress bars end lines too."""
        for part in line.split("\r") if "\r" in line else (line,):
            if part.startswith('{"step"'):
                yield from self.flush()
                if (written := parse_line(part)) is not None:
                    yield written
                continue
            step, taken = self._steps.feed(part)
            if step is not None:
                yield step
            if not taken:
                yield part

    def flush(self) -> Iterator[LoggedStep]:
        """The step that was waiting for its next line."""
        if (step := self._steps.flush()) is not None:
            yield step
