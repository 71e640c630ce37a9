"""The files that a study leaves: what they say, and that hostile text cannot change how they read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from autotune.store.frames import steps_frame
from autotune.store.store import Store
from autotune.tuner import outcome
from autotune.tuner.outcome import report_markdown, write_outputs
from autotune.values import KnobValue, Point, TrialKind
from autotune.verl import keys
from tests.studies import BASELINE, CHANGES, FASTER, add_study, add_trial, failure, finished_study, measurement, verdict


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path / 'trials.db'}")
    yield store
    store.close()


def report(store: Store, changes: dict[str, KnobValue], name: str = "night") -> str:
    study = store.study(name)
    return report_markdown(study, store.trials(study.id), changes)


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[list[str]]:
    """Cells of every table row, split where GitHub's Markdown splits: at pipes without a backslash of their own."""
    found = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells, cell, characters = [], "", iter(line[1:])
            for character in characters:
                if character == "\\":
                    cell += character + next(characters)
                elif character == "|":
                    cells.append(cell.strip())
                    cell = ""
                else:
                    cell += character
            found.append(cells)
    return found


def test_report_says_the_verdict_first(store: Store) -> None:
    finished_study(store)
    text = report(store, CHANGES)
    paragraphs = [line for line in text.splitlines() if line]
    assert paragraphs[0] == "# autotune: night"
    assert paragraphs[1].startswith("> **SIMULATED**")
    assert paragraphs[2] == "**Faster by +50.0 % (95 % interval +40.0 % to +60.0 %).**"


def test_report_compares_figures_and_phases_with_their_shares(store: Store) -> None:
    finished_study(store)
    table = {cells[0]: cells[1:] for cells in rows(section(report(store, CHANGES), "Before and after"))}
    assert table["tokens/s/GPU"] == ["250.0", "375.0"]
    assert table["seconds a step"] == ["2.00", "1.33"]
    assert table["MFU of the actor update"] == ["not computable", "not computable"]
    assert table["gen"] == ["1.20 (60%)", "0.80 (60%)"]
    assert table["rest"] == ["0.20 (10%)", "0.13 (10%)"]


def test_report_names_what_changed_and_which_phases_feel_it(store: Store) -> None:
    finished_study(store)
    changes: dict[str, KnobValue] = {
        **CHANGES,
        keys.DYNAMIC: True,
        keys.LOG_PROB_DYNAMIC: True,
        keys.SAMPLER_PATH: "/out/autotune_hooks.py",
    }
    table = {cells[0]: cells[1:] for cells in rows(section(report(store, changes), "What best.sh changes"))}
    assert table[keys.MAX_NUM_SEQS] == ["8", "64", "gen"]
    assert table[keys.ACTOR_MICRO_BATCH] == ["1", "4", "update_actor"]
    assert table[keys.LOG_PROB_DYNAMIC] == ["not set", "true", "old_log_prob, ref, update_actor"]
    assert table[keys.SAMPLER_PATH][2] == "gen (the poll for its end)"


def test_report_lists_every_trial_with_the_reason_of_those_that_failed(store: Store) -> None:
    finished_study(store)
    table = {cells[0]: cells[1:] for cells in rows(section(report(store, CHANGES), "Every trial"))}
    assert [name for name in table if name.startswith("t0")] == ["t000", "t001", "t002", "t003"]
    assert table["t001"][0] == "SIMULATED infeasible"
    assert table["t001"][1:4] == ["–", "–", "–"]
    assert table["t001"][5] == (
        "oom_gpu in update_actor: torch.OutOfMemoryError: CUDA out of memory What helps: Lower the micro-batch."
    )
    assert table["t002"][1:4] == ["400.0", "+60.0 %", "1.25"]
    assert table["t003"][0] == "SIMULATED measured again"


def test_report_says_how_it_was_measured_and_what_was_not(store: Store) -> None:
    finished_study(store)
    text = report(store, CHANGES)
    method = section(text, "How it was measured")
    assert "4 trials, one per row above: 3 measured in launches of verl of their own." in method
    assert "6 steps counted, 3 left out" in method
    assert "2 ranks on the CPU" in method
    assert "verl 0.9.1" in method
    assert "torch.compile were not measured" in method
    same = section(text, "Does it train the same?")
    assert "tuning keys alone: yes" in same
    assert "gradient norm on the same batch: not measured" in same
    assert "optimiser steps: not measured" in same


def test_report_tells_what_was_measured_in_a_session_from_what_had_a_launch_of_its_own(store: Store) -> None:
    study = add_study(store)
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    for seconds in (2.0, 1.0):
        add_trial(store, study, outcome=replace(measurement(seconds), session="s1"))
    method = section(report(store, {}), "How it was measured")
    assert (
        "3 trials, one per row above: 1 measured in a launch of verl of its own and "
        "2 measured in 1 session (one launch of verl for many settings)." in method
    )


def test_gain_of_the_hook_has_a_line_of_its_own_only_where_it_is_used(store: Store) -> None:
    finished_study(store)
    assert "generation poll" not in report(store, CHANGES)
    finished_study(store, "hooked", end=verdict(hook_gain=0.125))
    [line] = [line for line in report(store, CHANGES, "hooked").splitlines() if "generation poll" in line]
    assert "+12.5 %" in line


def test_real_study_has_no_badge(store: Store) -> None:
    add_study(store, "real", simulated=False)
    assert "SIMULATED" not in report(store, {}, "real")


def test_study_that_failed_at_its_baseline_says_why(store: Store) -> None:
    study = add_study(store)
    add_trial(store, study, BASELINE, TrialKind.BASELINE, failure())
    end = verdict(decision="baseline_failed", gain=None, interval=None, best_number=None, best_range=None)
    store.set_verdict(study, {**end, "reason": "the user's own command failed. oom_gpu in update_actor"})
    text = report(store, {})
    assert "**The study stopped: the user's own command failed. oom_gpu in update_actor**" in text
    assert "Before and after" not in text
    assert "Nothing: it is your script as it was." in text


def test_study_without_a_trial_or_verdict_has_a_report(store: Store) -> None:
    add_study(store)
    assert "no verdict yet" in report(store, {})


HOSTILE = "a|b \\| `x` \\\n| new | row |\r\n# head <script>alert(1)</script> **bold** [l](javascript:x) __init__ \x1b[31m\u2028end"


def test_hostile_text_stays_in_its_cell(store: Store) -> None:
    study = add_study(store, "bad|\n# name", workload=HOSTILE, environment={"verl": "0.9.1", "host": HOSTILE})
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    add_trial(store, study, Point.of({"x.y.z|`": HOSTILE}), outcome=failure(HOSTILE))
    store.set_verdict(study, verdict(decision="no_meaningful_difference", reason=HOSTILE, gain=None, best_number=None))
    text = report(store, {"x.y": HOSTILE}, "bad|\n# name")
    for title, width in (("Every trial", 7), ("What best.sh changes", 4)):
        assert {len(cells) for cells in rows(section(text, title))} == {width}
    assert len([line for line in text.splitlines() if line.startswith("# ")]) == 1
    assert "<script" not in text
    assert "**bold**" not in text
    assert "[l](" not in text
    assert "\x1b" not in text
    assert "\\_\\_init\\_\\_" in text


def test_keys_keep_their_underscores(store: Store) -> None:
    finished_study(store)
    assert keys.MAX_NUM_SEQS in report(store, CHANGES)


def test_files_are_written_whole(store: Store, tmp_path: Path) -> None:
    finished_study(store)
    study = store.study("night")
    out = tmp_path / "out"
    out.mkdir()
    paths = write_outputs(store, study, store.trials(study.id), out, changes=CHANGES)
    assert (
        {path.name for path in paths}
        == {"best.yaml", "report.md", "trials.parquet"}
        == {path.name for path in out.iterdir()}
    )
    written = (out / "best.yaml").read_text(encoding="utf-8")
    assert written.startswith("#")
    assert yaml.safe_load(written) == CHANGES
    assert (out / "report.md").read_text(encoding="utf-8") == report(store, CHANGES)


def test_parquet_has_a_typed_column_for_each_knob_and_phase(store: Store, tmp_path: Path) -> None:
    finished_study(store)
    study = store.study("night")
    write_outputs(store, study, store.trials(study.id), tmp_path, changes={})
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    assert frame[keys.MAX_NUM_SEQS].tolist() == [8, 8, 64, 64]
    assert frame[keys.MAX_NUM_SEQS].dtype == "Int64"
    assert frame[keys.FAST_POLL].dtype == "boolean"
    assert frame["phase_gen_s"].tolist()[0] == pytest.approx(1.2)
    assert pd.isna(frame["phase_gen_s"].tolist()[1])
    assert frame["failure_class"].tolist()[1] == "oom_gpu"
    assert frame["simulated"].all()


def test_knob_with_values_of_several_types_becomes_text(store: Store, tmp_path: Path) -> None:
    study = add_study(store)
    for value in (None, 16, "auto", True, 2**80):
        add_trial(store, study, Point.of({"a.b": value, "c.d": value if isinstance(value, bool) else None}))
    record = store.study("night")
    write_outputs(store, record, store.trials(study), tmp_path, changes={})
    frame = pd.read_parquet(tmp_path / "trials.parquet")
    assert [None if pd.isna(value) else value for value in frame["a.b"]] == [None, "16", "auto", "True", str(2**80)]
    assert frame["c.d"].dtype == "boolean"


def test_study_without_trials_is_exported(store: Store, tmp_path: Path) -> None:
    add_study(store)
    write_outputs(store, store.study("night"), [], tmp_path, changes={})
    assert len(pd.read_parquet(tmp_path / "trials.parquet")) == 0


def test_steps_frame_has_one_row_per_step(store: Store) -> None:
    finished_study(store)
    frame = steps_frame(store, store.study("night"))
    assert frame.groupby("number").size().to_dict() == {0: 3, 2: 3, 3: 3}
    assert frame[frame["number"] == 2]["settling"].tolist() == [True, False, False]
    assert frame[frame["number"] == 2]["phase_gen_s"].tolist() == pytest.approx([1.5, 0.75, 0.75])


def test_file_that_cannot_be_finished_leaves_the_old_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_study(store)
    (tmp_path / "trials.parquet").write_bytes(b"old")

    def full(frame: pd.DataFrame, path: Path, **options: object) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outcome.trials_frame(store, store.study("night")).__class__, "to_parquet", full)
    with pytest.raises(OSError, match="No space"):
        write_outputs(store, store.study("night"), [], tmp_path, changes={})
    assert (tmp_path / "trials.parquet").read_bytes() == b"old"
    assert not (tmp_path / ".trials.parquet.new").exists()


def test_faster_point_differs_from_the_baseline_in_what_the_report_lists(store: Store) -> None:
    assert FASTER.changes_from(BASELINE) == CHANGES


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        (None, "not measured"),
        ({"baseline": None, "best": None, "left_out": 0, "slope": None}, "not measured"),
        (
            {"baseline": None, "best": None, "left_out": 0, "slope": 0.0},
            "not measured. Its peak did not grow over the steps of a launch",
        ),
        ({"baseline": None, "best": None, "left_out": 0}, "not measured"),
        (
            {"baseline": {"failure": None, "used": 25.3, "device": 139.8}, "best": None, "left_out": 0},
            "your command 25.3 of 139.8 GiB",
        ),
        (
            {
                "baseline": {"failure": None, "used": 25.3, "device": 139.8},
                "best": {
                    "failure": {"class": "oom_gpu", "phase": "ref", "evidence": "9 GiB"},
                    "used": None,
                    "device": 139.8,
                },
                "left_out": 2,
            },
            "best does not fit (oom_gpu in ref), your command 25.3 of 139.8 GiB; 2 faster settings left out for it",
        ),
        (
            {
                "baseline": {"failure": failure("80 GiB; not tried").to_json(), "used": None, "device": 139.8},
                "best": None,
                "left_out": 0,
            },
            "your command is not expected to fit (in update_actor; not tried)",
        ),
    ],
)
def test_report_says_what_is_known_of_memory_on_a_long_night(store: Store, memory: object, told: str) -> None:
    finished_study(store, end=verdict(memory=memory))
    said = section(report(store, CHANGES), "Does it still fit on a long night?")
    assert f"with every response at its limit: {told}." in " ".join(said.split())


@pytest.mark.parametrize(("shares", "told"), [(None, None), ([0.0, 0.164], "took 0% to 16% of the CPU time")])
def test_report_says_what_the_hypervisor_took_in_the_launches_that_decided(store: Store, shares, told) -> None:
    finished_study(store, end=verdict(cpu_stolen=shares))
    said = section(report(store, CHANGES), "How it was measured")
    assert ("hypervisor" in said) is (told is not None)
    assert told is None or told in said
