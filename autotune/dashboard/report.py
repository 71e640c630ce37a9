"""`report.html`: a study in one file that needs nothing else, with the pictures of the dashboard; it prints."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from markupsafe import Markup

from autotune.dashboard import pages, templating
from autotune.store.store import Store
from autotune.tuner.outcome import replace_file

NAME = "report.html"
_SCRIPTS = ("theme.js", "vendor/plotly-strict.min.js", "charts.js")


def write_report(store: Store, study: str, out: Path) -> Path:
    """Writes `report.html` of a study into a folder, whole or not at all; returns its path.

    Raises:
        BadInput: there is no study of that name.
    """
    return replace_file(out / NAME, report_html(store, store.study(study).id))


def report_html(store: Store, study_id: int) -> str:
    """The report as one HTML text. Its policy lets the browser run the scripts in it, and load nothing.

    Raises:
        LookupError: there is no such study.
    """
    page = pages.study(store, study_id)
    if page is None:
        raise LookupError(f"no study {study_id}")
    style = templating.asset_text("app.css")
    scripts = [templating.asset_text(name) for name in _SCRIPTS]
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {' '.join(map(_hash, scripts))}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    first, *rest = scripts
    return (
        templating.environment()
        .get_template("report.html")
        .render(
            page=page,
            policy=Markup(policy),
            style=Markup(style),
            first=Markup(first),
            scripts=[Markup(script) for script in rest],
        )
    )


def _hash(text: str) -> str:
    """How a Content-Security-Policy names an inline text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
