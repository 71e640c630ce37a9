"""What pages ask of the store, on both databases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select

from autotune.store import queries
from autotune.store.tables import TrialRow
from autotune.values import Measurement, Point, TrialKind, TrialState
from autotune.verl import keys
from tests.studies import BASELINE, add_study, add_trial, failure, finished_study, measurement, step


def test_studies_come_newest_first_in_pages(store):
    ids = [add_study(store, f"study-{i}") for i in range(5)]
    first, last = queries.studies_page(store, size=2), queries.studies_page(store, size=2, page=3)
    assert [s.id for s in first.rows] == [ids[4], ids[3]]
    assert [s.id for s in last.rows] == [ids[0]]
    assert (first.total, first.pages, last.first, last.last) == (5, 3, 5, 5)
    assert queries.studies_page(store, size=2, page=99).number == 3


def test_an_empty_list_is_one_empty_page(store):
    page = queries.studies_page(store)
    assert (page.rows, page.total, page.pages, page.first, page.last) == ((), 0, 1, 0, 0)


@pytest.mark.parametrize("text", ["100%", "a_b", "back\\slash", "Ümlaut"])
def test_special_characters_of_a_search_stand_for_themselves(store, text):
    wanted = add_study(store, f"has {text} inside")
    add_study(store, "100 aXb backslash Umlaut")
    assert [s.id for s in queries.studies_page(store, text=text).rows] == [wanted]


def test_studies_are_found_by_workload_and_state(store):
    done = finished_study(store, "done")
    add_study(store, "other", workload="something ELSE", workload_fingerprint="f")
    assert [s.id for s in queries.studies_page(store, state="finished").rows] == [done]
    assert [s.name for s in queries.studies_page(store, text="else").rows] == ["other"]
    assert [s.name for s in queries.studies_page(store, fingerprint="f").rows] == ["other"]
    assert [s.name for s in queries.running_studies(store)] == ["other"]


def test_trials_sort_with_missing_figures_last_in_both_directions(store):
    study = finished_study(store)
    for descending in (True, False):
        page = queries.trials_page(store, study, sort="throughput", descending=descending)
        assert page.rows[-1].state is TrialState.INFEASIBLE
        known = [t.throughput for t in page.rows[:-1]]
        assert known == sorted(known, key=lambda value: value or 0.0, reverse=descending)


def test_trials_are_found_by_setting_and_by_failure(store):
    study = finished_study(store)
    assert [t.number for t in queries.trials_page(store, study, text="outofmemory").rows] == [1]
    assert len(queries.trials_page(store, study, text=keys.MAX_NUM_SEQS).rows) == 4
    assert queries.trials_page(store, study, text="no such thing").total == 0
    assert queries.trials_page(store, study, state="measured").total == 3


def test_a_summary_agrees_with_the_whole_trial(store):
    study = finished_study(store)
    for summary, whole in zip(queries.trial_summaries(store, study), store.trials(study), strict=True):
        shared = [name for name in summary.__dataclass_fields__ if hasattr(whole, name)]
        assert [getattr(summary, n) for n in shared] == [getattr(whole, n) for n in shared]
    first = queries.trial_summary(store, study, 0)
    assert first is not None
    assert (first.settling_seconds, first.counted_seconds) == (4.0, 4.0)
    assert queries.trial(store, study, 2) == store.trials(study)[2]
    assert [s.seconds for s in queries.steps_of(store, study, 0)] == [4.0, 2.0, 2.0]


@pytest.mark.parametrize("number", [-1, 99, 2**40])
def test_what_is_not_there_is_none(store, number):
    study = finished_study(store)
    assert queries.trial(store, study, number) is None
    assert queries.trial_summary(store, study, number) is None
    assert queries.study_by_id(store, number) is None
    assert queries.study_summaries(store, []) == []
    assert queries.newest_trial(store, 99) is None


def test_simulated_and_measured_studies_of_a_workload_stand_apart(store):
    finished_study(store, "made-up")
    real = add_study(store, "real", simulated=False)
    page = queries.workloads_page(store)
    assert {(w.simulated, w.studies) for w in page.rows} == {(True, 1), (False, 1)}
    assert [n.study_id for n in queries.nights_of(store, "0123456789abcdef", simulated=False)] == [real]


def test_a_nights_baseline_is_that_of_all_its_launches(store):
    finished_study(store, "judged")
    study = add_study(store, "not yet")
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    judged, running = queries.nights_of(store, "0123456789abcdef", simulated=True)
    assert (judged.baseline, judged.best, judged.noise) == (250.0, 375.0, 0.01)
    assert (running.baseline, running.best) == (250.0, None)


def test_what_trials_are_compared_with_is_the_users_command_alone(store):
    study = add_study(store)
    add_trial(store, study, BASELINE, TrialKind.BASELINE, measurement(2.0))
    add_trial(store, study, Point.of({keys.MAX_NUM_SEQS: 2}), outcome=failure())
    add_trial(store, study, BASELINE, TrialKind.ANCHOR, measurement(1.0))
    assert [(t.number, t.throughput) for t in queries.levels(store, study)] == [(0, 250.0), (2, 500.0)]


def test_disturbed_steps_are_counted_apart(store):
    study = add_study(store)
    steps = (
        step(1, 4.0, settling=True),
        step(2, 2.0),
        replace(step(3, 9.0), invalid="another process used the GPU"),
        step(4, 2.0),
    )
    add_trial(store, study, BASELINE, TrialKind.BASELINE, Measurement(steps, world_size=2, simulated=True))
    (trial,) = queries.trial_summaries(store, study)
    assert (trial.settling_steps, trial.counted_steps, trial.invalid_steps) == (1, 2, 1)
    assert (trial.settling_seconds, trial.counted_seconds) == (4.0, 4.0)
    assert [s.invalid for s in queries.steps_of(store, study, 0)][2] == "another process used the GPU"


def test_a_reader_does_not_hold_up_the_writer(store):
    study = finished_study(store)
    with store.reading() as session:
        session.execute(select(TrialRow.id)).first()  # its transaction stays open
        number = add_trial(store, study, BASELINE, outcome=measurement(1.0))
        assert number == 4
        before = session.scalar(select(func.count(TrialRow.id)))
    assert before in (4, 5)  # SQLite shows the state at the begin, PostgreSQL the newest
    assert len(store.trials(study)) == 5


def test_a_study_is_found_by_its_name(store):
    study = add_study(store, "night")
    assert queries.study_id(store, "night") == study
    assert queries.study_id(store, "nigh") is None
