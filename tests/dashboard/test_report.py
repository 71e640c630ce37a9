"""`report.html`: one file, nothing from outside. Every figure in here is simulated."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from autotune.dashboard.report import report_html, write_report
from autotune.values import BadInput
from tests.dashboard.test_pages import HOSTILE, Parsed
from tests.studies import add_study, finished_study


def test_the_report_is_one_file_that_loads_nothing(store, tmp_path):
    finished_study(store)
    text = write_report(store, "night", tmp_path).read_text()
    tags = Parsed(text.partition("<script>")[0]).tags
    assert not any("src" in attributes or tag == "link" for tag, attributes in tags)
    assert not re.search(r"<(?:link|img|iframe)\b", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))
    assert "SIMULATED" in text
    assert "Faster by +50.0 %" in text


def test_its_policy_names_each_script_and_style_that_stands_in_it(store):
    study = finished_study(store)
    text = report_html(store, study)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "unsafe" not in policy[1]
    for inline in re.findall(r"<script>(.*?)</script>|<style[^>]*>(.*?)</style>", text, re.DOTALL):
        body = "".join(inline)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]


def test_hostile_names_stay_text_in_it(store):
    study = finished_study(store, HOSTILE, workload=HOSTILE, script_text=HOSTILE)
    text = report_html(store, study)
    assert "<img src=x" not in text
    assert "<script>alert(1)" not in text


def test_a_study_without_a_verdict_has_a_report_too(store):
    study = add_study(store)
    assert "Interrupted: the tuner of this study is gone." in report_html(store, study)
    store.set_study_state(study, "stopped")
    assert "No verdict." in report_html(store, study)


def test_a_report_of_nothing_is_refused(store, tmp_path):
    with pytest.raises(BadInput):
        write_report(store, "none", tmp_path)
    with pytest.raises(LookupError):
        report_html(store, 7)
