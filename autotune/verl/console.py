"""Lines of a verl console log: what stands around the message, and the step lines among them.

A step line is `step:N - name:value - name:value …` (`verl/utils/logger/aggregate_logger.py`): three decimals up to 0.4.1, `pprint` after it,
so that numpy 2 scalars read `np.float64(0.31)`. Ray puts `(TaskRunner pid=…, ip=…) ` before it, and anything may stand before that.
"""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_ACTOR = re.compile(
    r"\((?P<who>[A-Za-z_][\w.<> -]{0,80}?)?,? ?(?:pid=[\w.-]+)(?:, ip=[\w.:\[\]-]+)?(?:, \w+=[^(),]{0,80}){0,3}\) ?"
    r"|\((?P<daemon>raylet|autoscaler|gcs_server|dashboard)(?:[ ,+][^()]{0,60})?\) ?"
)
_HEAD = re.compile(
    r"(?:\s+"
    r"|\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?"
    r"|(?:stdout|stderr) [FP] "
    r"|\[(?:rank|default|node)?\d+\]:?"
    r"|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)(?: \d\d-\d\d(?: \d\d:\d\d:\d\d)?)?(?: (?:\[[\w.]+:\d+\]|[\w.]+:\d+\]))?:?(?= |$)"
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
