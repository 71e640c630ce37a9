"""Speaking up: a night that is slower, a better setting, a failure. Sent by Apprise to addresses that only the environment has."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

import apprise

from autotune.redaction import find_secrets, redact
from autotune.store.schedules import NightRecord, ScheduleRecord

VARIABLE = "AUTOTUNE_NOTIFY"
"""Environment variable with the addresses, separated by blanks or commas. They hold secrets: never stored, never in a command line."""
URL_VARIABLE = "AUTOTUNE_URL"
"""Environment variable with the address under which people open the dashboard."""
PATIENCE = 20.0
"""Seconds for which a message may be on its way, to all addresses together."""
LONGEST_TITLE, LONGEST_BODY = 200, 4000

Kind = Literal["regression", "new_best", "failure", "test"]
_TYPES: Mapping[Kind, apprise.NotifyType] = {
    "regression": apprise.NotifyType.WARNING,
    "new_best": apprise.NotifyType.SUCCESS,
    "failure": apprise.NotifyType.FAILURE,
    "test": apprise.NotifyType.INFO,
}
_HOST_IS_NO_SECRET = frozenset({"json", "jsons", "xml", "xmls", "form", "forms", "mailto", "mailtos"})
"""Schemes whose host is a host; that of `slack://` and many others is a token."""
_SPLIT = re.compile(r"\s+|,+\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)")
_FOR_MARKUP = str.maketrans({"<": "‹", ">": "›", "@": "＠", "`": "'", "*": "∗", "[": "(", "]": ")"})
"""Characters with which a name could become a mention, a link or markup in a chat; their look-alikes cannot."""

_said: ContextVar[list[str] | None] = ContextVar("said", default=None)


# -- messages --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent: plain text, without secrets."""

    kind: Kind
    title: str
    body: str


def message_of(
    kind: Kind, text: str, schedule: ScheduleRecord, night: NightRecord, *, link: str | None = None
) -> Message:
    """The message of whatever a night has to say.

    Args:
        text: one sentence or more for people.
    """
    if kind == "regression":
        return regression(schedule, night, text=text, link=link)
    if kind == "new_best":
        return new_best(schedule, night, text, link=link)
    if kind == "failure":
        return failure(schedule, night, text=text, link=link)
    return trial(schedule.host)


def regression(schedule: ScheduleRecord, night: NightRecord, *, text: str = "", link: str | None = None) -> Message:
    """The alarm of a night that is slower than those before: by how much, in which phase, and what changed.

    Args:
        text: what to say first; empty: the sentence of the night's verdict.
    """
    verdict = night.verdict or {}
    phases = [str(phase) for phase in verdict.get("phases", ())]
    lines = [text or str(verdict.get("text") or "The night is slower than those before.")]
    if phases:
        lines.append(f"Slower in: {', '.join(phases)}")
    lines += [
        _tested(test) for test in verdict.get("tests", ()) if test.get("beyond") and (test.get("change") or 0) > 0
    ]
    changed = [str(sentence) for sentence in verdict.get("environment", ())]
    if changed:
        lines += ["Changed since the nights before:", *(f"- {sentence}" for sentence in changed)]
    else:
        lines.append("Nothing that autotune looks at changed in the environment.")
    return _message("regression", f"{schedule.name} is slower than before", schedule, night, lines, link)


def new_best(
    schedule: ScheduleRecord,
    night: NightRecord,
    text: str,
    *,
    changed: Sequence[str] = (),
    files: Sequence[object] = (),
    link: str | None = None,
) -> Message:
    """A night found, and confirmed, a better setting.

    Args:
        text: by how much.
        changed: `key: from → to`, one for each changed override.
        files: what it left, the script first.
    """
    lines = [text, *(f"- {change}" for change in changed)]
    if files:
        lines.append(f"Script: {files[0]}")
    lines.append(f"autotune schedule show {schedule.name} tells more.")
    return _message("new_best", f"{schedule.name}: a better setting was found", schedule, night, lines, link)


def failure(schedule: ScheduleRecord, night: NightRecord, *, text: str = "", link: str | None = None) -> Message:
    """A night that could not do its work.

    Args:
        text: why; empty: the night's reason.
    """
    said = text or night.reason or str((night.verdict or {}).get("text") or "No reason was stored.")
    what = "was skipped" if night.state.value == "skipped" else "failed"
    lines = [said, f"autotune schedule history {schedule.name} tells more."]
    return _message("failure", f"{schedule.name}: the night {what}", schedule, night, lines, link)


def trial(host: str) -> Message:
    """What `autotune schedule notify --test` sends."""
    return Message("test", "autotune: a test message", _body([f"Notifications of autotune on {host} arrive here."]))


def link_to(schedule: str, environment: Mapping[str, str]) -> str | None:
    """Where people read about a schedule; None: the environment does not say where the dashboard is."""
    base = environment.get(URL_VARIABLE, "").strip().rstrip("/")
    return f"{base}/schedules/{quote(schedule)}" if re.fullmatch(r"https?://[^\s<>\"']+", base) else None


def _message(
    kind: Kind, title: str, schedule: ScheduleRecord, night: NightRecord, lines: Sequence[str], link: str | None
) -> Message:
    label = "SIMULATED: " if night.simulated else ""
    about = f"{schedule.name} on {schedule.host}, night {night.slot} ({schedule.tz}), {schedule.script_path}"
    return Message(kind, _plain(redact(f"{label}{title}"))[:LONGEST_TITLE], _body([label + about, *lines], link))


def _body(lines: Sequence[str], link: str | None = None) -> str:
    # The link is the service's own: only what other people named is made harmless.
    text = "\n".join(_plain(line) for line in redact("\n".join(lines)).split("\n"))[:LONGEST_BODY]
    return text if link is None else f"{text}\n{redact(link)}"


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text).translate(_FOR_MARKUP)


def _tested(test: Mapping[str, Any]) -> str:
    """One test that lies beyond the noise: `{"subject", "quantity", "change", "band"}`, changes as fractions of seconds."""
    whose = {"own": "your command", "best": "the best setting"}.get(str(test.get("subject")), str(test.get("subject")))
    change, band = test.get("change"), test.get("band")
    by = f"{change:+.1%}" if isinstance(change, (int, float)) else "changed"
    noise = f" (noise: up to {band:.1%})" if isinstance(band, (int, float)) else ""
    return f"- {test.get('quantity')} of {whose}: {by} seconds{noise}"


# -- sending ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Address:
    number: int
    """Its place in the variable, from 1."""
    service: apprise.NotifyBase | None
    """None: Apprise cannot read it."""
    shown: str
    """How people recognise it; holds no secret."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What came of a message at one address."""

    address: str
    problem: str | None
    """In plain words; None: it was taken."""


class Notifier:
    """Sends messages to every address of the environment."""

    def __init__(self, addresses: Sequence[str], secrets: frozenset[str] = frozenset()) -> None:
        """
        Args:
            secrets: values that no message may hold, wherever they stand.
        """
        _listen()
        self._addresses = [_address(number, url) for number, url in enumerate(addresses, 1)]
        self._secrets = secrets | {part for url in addresses for part in _parts(url)}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Notifier:
        """The addresses of `AUTOTUNE_NOTIFY`; none where it is missing."""
        text = environment.get(VARIABLE, "").strip(" \t\r\n,")
        assigned = "\n".join(f"{name}={value}" for name, value in environment.items() if name != VARIABLE)
        return cls([url for url in _SPLIT.split(text) if url], frozenset(find_secrets(assigned)))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses as people may see them."""
        return tuple(address.shown for address in self._addresses)

    def send(self, message: Message) -> list[str]:
        """Sends a message to every address; returns what went wrong, one sentence each. Takes `PATIENCE` seconds at most."""
        return [f"{delivery.address}: {delivery.problem}" for delivery in self.deliver(message) if delivery.problem]

    def deliver(self, message: Message, *, patience: float = PATIENCE) -> list[Delivery]:
        """As `send`, with what was taken as well."""
        title, body = redact(message.title, self._secrets), redact(message.body, self._secrets)
        sendings = [_Sending(address, title, body, _TYPES[message.kind]) for address in self._addresses]
        for sending in sendings:
            sending.start()
        deadline = time.monotonic() + patience
        for sending in sendings:
            sending.join(max(0.0, deadline - time.monotonic()))
        return [Delivery(sending.address.shown, sending.problem(patience)) for sending in sendings]


class _Sending(threading.Thread):
    """One message on its way to one address. A thread, because a service may hang longer than Apprise's own time limits."""

    def __init__(self, address: _Address, title: str, body: str, kind: apprise.NotifyType) -> None:
        super().__init__(name=f"notify-{address.number}", daemon=True)
        self.address = address
        self._title, self._body, self._kind = title, body, kind
        self._log: list[str] = []
        self._taken: bool | None = None

    def run(self) -> None:
        if self.address.service is not None:
            copy_context().run(self._send, self.address.service)

    def _send(self, service: apprise.NotifyBase) -> None:
        _said.set(self._log)
        sender = apprise.Apprise()
        sender.add(service)
        self._taken = bool(
            sender.notify(
                body=self._body, title=self._title, notify_type=self._kind, body_format=apprise.NotifyFormat.TEXT
            )
        )

    def problem(self, patience: float) -> str | None:
        """Why it was not taken, as far as is known."""
        if self.address.service is None:
            return f"Apprise cannot read it; see its list of services for how it is written ({VARIABLE})"
        if self._taken:
            return None
        if self.is_alive():
            return f"no answer within {patience:g} s"
        return _reason("\n".join(self._log))


def _reason(log: str) -> str:
    """What Apprise's log says, in words of our own: its words may hold parts of the address."""
    status = re.search(r"\berror=(\d{3})\b", log)
    if status is not None:
        code = int(status[1])
        hint = {401: "check its token", 403: "check its token", 404: "check the address", 429: "too many messages"}
        return f"refused with HTTP status {code}" + (f" ({hint[code]})" if code in hint else "")
    if re.search(r"connection|socket|timed? ?out", log, re.IGNORECASE):
        return "could not be reached, or did not answer"
    return "not taken; check the address, and whether this host may reach it"


def _address(number: int, url: str) -> _Address:
    service = apprise.Apprise.instantiate(url)
    if not isinstance(service, apprise.NotifyBase):
        return _Address(number, None, f"address {number} of {VARIABLE}")
    at = ""
    if urlsplit(url).scheme.lower() in _HOST_IS_NO_SECRET and re.fullmatch(r"[A-Za-z0-9.:_-]+", service.host or ""):
        at = f" at {service.host}"
    return _Address(number, service, f"address {number} of {VARIABLE} ({service.service_name}{at})")


def _parts(url: str) -> set[str]:
    """Everything in an address that may be a secret: the log-in, and what looks like a token in its path, query or host."""
    _, _, rest = url.partition("://")
    login, _, place = rest.rpartition("@")
    tokens = {piece for piece in re.split(r"[:/?&=#]+", place) if len(piece) >= 8 and re.search(r"\d", piece)}
    if urlsplit(url).scheme.lower() in _HOST_IS_NO_SECRET:
        tokens.discard(re.split(r"[:/?]", place)[0])
    pieces = tokens | set(re.split(r"[:/]+", login))
    return pieces | {unquote(piece) for piece in pieces}


class _Handler(logging.Handler):
    """Keeps what Apprise logs of a sending for the one that asked for it."""

    def emit(self, record: logging.LogRecord) -> None:
        said = _said.get()
        if said is not None:
            said.append(record.getMessage())


def _listen() -> None:
    """Takes over Apprise's log: it would go to stderr, and may hold what stands in the addresses."""
    log = logging.getLogger("apprise")
    log.propagate = False
    log.setLevel(logging.WARNING)
    if not any(isinstance(handler, _Handler) for handler in log.handlers):
        log.addHandler(_Handler(logging.WARNING))
