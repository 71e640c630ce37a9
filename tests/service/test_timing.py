"""When schedules run, in the zones of people whose clocks change."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.service.timing import LONGEST, Firing, Timetable
from autotune.values import BadInput


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def firings(table: Timetable, after: str, count: int) -> list[tuple[str, str, str]]:
    return [
        (firing.slot, f"{firing.at:%m-%dT%H:%M}", f"{firing.until:%m-%dT%H:%M}")
        for firing in islice(table.after(utc(after)), count)
    ]


def test_an_ordinary_night_runs_at_wall_time_until_the_window_closes() -> None:
    table = Timetable("0 2 * * *", "02:00-06:00", "Europe/Berlin")
    assert firings(table, "2026-01-10T12:00", 2) == [
        ("2026-01-11T02:00", "01-11T01:00", "01-11T05:00"),
        ("2026-01-12T02:00", "01-12T01:00", "01-12T05:00"),
    ]
    assert table.longest == timedelta(hours=4)


# Each row: cron, window, zone, a moment before the change of the clocks, and the firings around it.
NIGHTS = {
    "Berlin springs forward: 02:00 is skipped, the night begins right after and is an hour shorter": (
        ("0 2 * * *", "02:00-06:00", "Europe/Berlin", "2026-03-28T12:00"),
        [("2026-03-29T02:00", "03-29T01:00", "03-29T04:00"), ("2026-03-30T02:00", "03-30T00:00", "03-30T04:00")],
    ),
    "Berlin springs forward: 02:30 is skipped, too": (
        ("30 2 * * *", "02:00-06:00", "Europe/Berlin", "2026-03-28T12:00"),
        [("2026-03-29T02:30", "03-29T01:00", "03-29T04:00"), ("2026-03-30T02:30", "03-30T00:30", "03-30T04:00")],
    ),
    "Berlin falls back: 02:00 comes twice, the first is meant, and the night is an hour longer": (
        ("0 2 * * *", "02:00-06:00", "Europe/Berlin", "2026-10-24T12:00"),
        [("2026-10-25T02:00", "10-25T00:00", "10-25T05:00"), ("2026-10-26T02:00", "10-26T01:00", "10-26T05:00")],
    ),
    "New York springs forward: 02:30 is skipped": (
        ("30 2 * * *", "02:00-05:00", "America/New_York", "2026-03-07T12:00"),
        [("2026-03-08T02:30", "03-08T07:00", "03-08T09:00"), ("2026-03-09T02:30", "03-09T06:30", "03-09T09:00")],
    ),
    "New York falls back: 01:30 comes twice": (
        ("30 1 * * *", "01:00-05:00", "America/New_York", "2026-10-31T12:00"),
        [("2026-11-01T01:30", "11-01T05:30", "11-01T10:00"), ("2026-11-02T01:30", "11-02T06:30", "11-02T10:00")],
    ),
    "Lord Howe springs forward by half an hour: 02:15 is skipped": (
        ("15 2 * * *", "02:00-06:00", "Australia/Lord_Howe", "2026-10-03T12:00"),
        [("2026-10-04T02:15", "10-03T15:30", "10-03T19:00"), ("2026-10-05T02:15", "10-04T15:15", "10-04T19:00")],
    ),
    "Lord Howe falls back by half an hour: 01:45 comes twice": (
        ("45 1 * * *", "01:30-06:00", "Australia/Lord_Howe", "2026-04-04T12:00"),
        [("2026-04-05T01:45", "04-04T14:45", "04-04T19:30"), ("2026-04-06T01:45", "04-05T15:15", "04-05T19:30")],
    ),
    "a window across midnight in which Berlin springs forward": (
        ("30 22 * * *", "22:30-05:00", "Europe/Berlin", "2026-03-28T12:00"),
        [("2026-03-28T22:30", "03-28T21:30", "03-29T03:00"), ("2026-03-29T22:30", "03-29T20:30", "03-30T03:00")],
    ),
    "a window across midnight, due after midnight": (
        ("0 1 * * *", "22:30-05:00", "Europe/Berlin", "2026-01-10T12:00"),
        [("2026-01-11T01:00", "01-11T00:00", "01-11T04:00")],
    ),
    "a window that lies in the skipped hour is no time at all": (
        ("0 2 * * *", "02:00-03:00", "Europe/Berlin", "2026-03-28T12:00"),
        [("2026-03-29T02:00", "03-29T01:00", "03-29T01:00"), ("2026-03-30T02:00", "03-30T00:00", "03-30T01:00")],
    ),
}


@pytest.mark.parametrize(("given_", "expected"), NIGHTS.values(), ids=NIGHTS.keys())
def test_nights_in_which_clocks_change(given_: tuple[str, str, str, str], expected: list[tuple[str, str, str]]) -> None:
    cron, window, tz, after = given_
    assert firings(Timetable(cron, window, tz), after, len(expected)) == expected


@pytest.mark.parametrize(
    ("tz", "cron", "window", "year"),
    [
        ("Europe/Berlin", "30 2 * * *", "02:00-06:00", 2026),
        ("America/New_York", "30 1 * * *", "01:00-06:00", 2026),
        ("Australia/Lord_Howe", "45 1 * * *", "01:30-06:00", 2026),
        ("Australia/Lord_Howe", "15 2 * * *", "02:00-06:00", 2026),
    ],
)
def test_every_day_of_a_year_has_one_night(tz: str, cron: str, window: str, year: int) -> None:
    slots = [
        firing.slot[:10]
        for firing in islice(
            Timetable(cron, window, tz).after(datetime(year - 1, 12, 31, 12, tzinfo=timezone.utc)), 366
        )
    ]
    day = datetime(year, 1, 1)
    assert slots == [f"{day + timedelta(days=n):%Y-%m-%d}" for n in range(366)]


def test_an_hour_that_comes_twice_runs_once_whenever_one_asks() -> None:
    table = Timetable("30 2 * * *", "02:00-06:00", "Europe/Berlin")
    first = next(table.after(utc("2026-10-24T12:00")))
    assert first.at == utc("2026-10-25T00:30")
    # 01:30 UTC is 02:30 again: nothing is due.
    following = [next(table.after(first.at + timedelta(minutes=minutes))) for minutes in range(0, 120, 5)]
    assert {firing.slot for firing in following} == {"2026-10-26T02:30"}
    assert table.open_at(utc("2026-10-25T01:45")) == first


@given(
    start=st.datetimes(datetime(2026, 3, 20), datetime(2026, 11, 10)),
    tz=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kathmandu"]),
    hour=st.integers(0, 23),
    length=st.integers(1, 23),
)
@settings(max_examples=60, deadline=None)
def test_firings_come_in_order_each_once_and_end_after_they_begin(
    start: datetime, tz: str, hour: int, length: int
) -> None:
    table = Timetable(f"0 {hour} * * *", f"{hour:02}:00-{(hour + length) % 24:02}:00", tz)
    moment = start.replace(tzinfo=timezone.utc)
    found = list(islice(table.after(moment), 4))
    assert len({firing.slot for firing in found}) == 4
    assert [firing.at for firing in found] == sorted({firing.at for firing in found})
    assert found[0].at > moment
    for firing in found:
        assert timedelta(0) <= firing.until - firing.at <= timedelta(hours=length + 1)


def test_a_night_is_open_from_its_moment_to_the_end_of_its_window() -> None:
    table = Timetable("0 23 * * *", "23:00-05:00", "UTC")
    night = Firing("2026-01-10T23:00", utc("2026-01-10T23:00"), utc("2026-01-11T05:00"))
    assert table.open_at(utc("2026-01-10T22:59")) is None
    assert table.open_at(night.at) == night
    assert table.open_at(utc("2026-01-11T04:59")) == night
    assert table.open_at(night.until) is None


def test_of_several_firings_in_a_window_the_latest_is_open() -> None:
    table = Timetable("0 2,4 * * *", "02:00-06:00", "UTC")
    assert [
        firing.slot
        for firing in [table.open_at(utc("2026-01-10T03:00")), table.open_at(utc("2026-01-10T05:00"))]
        if firing
    ] == [
        "2026-01-10T02:00",
        "2026-01-10T04:00",
    ]


def days(cron: str, after: str = "2026-06-01T00:00", count: int = 5) -> list[str]:
    """`DD weekday` of firings; 2026-06-01 is a Monday."""
    return [f"{firing.at:%d %a}" for firing in islice(Timetable(cron, "02:00-06:00", "UTC").after(utc(after)), count)]


def test_where_both_days_are_restricted_either_of_them_will_do() -> None:
    assert days("0 2 13 * fri") == ["05 Fri", "12 Fri", "13 Sat", "19 Fri", "26 Fri"]


def test_where_a_day_begins_with_a_star_both_must_hold() -> None:
    assert days("0 2 */2 * mon") == ["01 Mon", "15 Mon", "29 Mon", "13 Mon", "27 Mon"]
    assert days("0 2 1-7 * */7", count=3) == ["07 Sun", "05 Sun", "02 Sun"]


@pytest.mark.parametrize("sunday", ["0", "7", "sun", "SUN"])
def test_sunday_has_two_numbers(sunday: str) -> None:
    assert days(f"0 2 * * {sunday}", count=2) == ["07 Sun", "14 Sun"]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("1-5", ["01 Mon", "02 Tue", "03 Wed", "04 Thu", "05 Fri", "08 Mon"]),
        ("5-7", ["05 Fri", "06 Sat", "07 Sun", "12 Fri"]),
        ("fri-sun", ["05 Fri", "06 Sat", "07 Sun", "12 Fri"]),
        ("1,3", ["01 Mon", "03 Wed", "08 Mon"]),
        ("1-5/2", ["01 Mon", "03 Wed", "05 Fri", "08 Mon"]),
        ("0-7", ["01 Mon", "02 Tue", "03 Wed", "04 Thu", "05 Fri", "06 Sat", "07 Sun"]),
    ],
)
def test_days_of_the_week_count_from_sunday_as_in_cron(field: str, expected: list[str]) -> None:
    assert days(f"0 2 * * {field}", count=len(expected)) == expected


def test_leap_days_come() -> None:
    [firing] = islice(Timetable("0 2 29 2 *", "02:00-06:00", "UTC").after(utc("2026-06-01T00:00")), 1)
    assert firing.slot == "2028-02-29T02:00"


HOSTILE = [
    "",
    " ",
    "* * * *",
    "0 2 * * * *",
    "0 2 * * *; rm -rf ~",
    "$(id) 2 * * *",
    "60 2 * * *",
    "0 24 * * *",
    "-1 2 * * *",
    "0 2 0 * *",
    "0 2 32 * *",
    "0 2 * 13 *",
    "0 2 * * 8",
    "0 2 * * 5-3",
    "0 2 * * mon-",
    "0 2 * * 1//2",
    "0 2 * * 1/0",
    "0 2 */0 * *",
    "0 2 1-0 * *",
    "0 2 * * 1/" + "9" * 5000,
    "0 2 " + ",".join(["1"] * 5000) + " * *",
    "0 2 31 2 *",
    "@daily",
    "0 2 * * \x00",
    "٠ 2 * * *",
    "0 2 * * *\n0 3 * * *",
    "{{7*7}} 2 * * *",
    "<script> 2 * * *",
    "\udc80 2 * * *",
]


@pytest.mark.parametrize("cron", HOSTILE)
def test_a_hostile_cron_expression_is_refused_in_one_sentence(cron: str) -> None:
    with pytest.raises(BadInput, match="--cron") as refused:
        Timetable(cron, "02:00-06:00", "UTC")
    assert len(str(refused.value)) < 4 * LONGEST


@pytest.mark.parametrize(
    "window",
    ["", "2-6", "02:00", "02:00-02:00", "24:00-25:00", "02:60-06:00", "02:00-06:00-07:00", "a" * 9999, "٠2:00-06:00"],
)
def test_a_window_that_is_none_is_refused(window: str) -> None:
    with pytest.raises(BadInput, match="--window"):
        Timetable("0 2 * * *", window, "UTC")


@pytest.mark.parametrize(
    "tz",
    [
        "",
        "Mars/Olympus",
        "../../../etc/passwd",
        "/etc/localtime",
        "Europe",
        "UTC\x00",
        "\udc80",
        "a" * 9999,
        "europe/berlin ",
    ],
)
def test_a_zone_that_is_none_is_refused(tz: str) -> None:
    with pytest.raises(BadInput, match="--tz"):
        Timetable("0 2 * * *", "02:00-06:00", tz)


@pytest.mark.parametrize("cron", ["0 1 * * *", "0 6 * * *", "0 2,7 * * *", "* * * * *"])
def test_a_time_outside_the_window_is_refused(cron: str) -> None:
    with pytest.raises(BadInput, match="outside the window 02:00-06:00"):
        Timetable(cron, "02:00-06:00", "UTC")


@given(
    st.text(st.sampled_from("0123456789*/,- abcdefnosu"), max_size=40) | st.text(max_size=40),
    st.text(st.sampled_from("0123456789:- "), max_size=14),
    st.sampled_from(["UTC", "Europe/Berlin"]) | st.text(max_size=20),
)
@settings(max_examples=150, deadline=None)
def test_whatever_is_given_is_a_timetable_or_a_clear_refusal(cron: str, window: str, tz: str) -> None:
    try:
        table = Timetable(cron, window, tz)
    except BadInput:
        return
    [firing] = islice(table.after(utc("2026-06-01T00:00")), 1)
    assert firing.at > utc("2026-06-01T00:00")
