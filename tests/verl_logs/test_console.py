"""Step lines among everything else that a console log holds."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path

import pytest

from autotune.verl.console import parse_step, split_prefix, strip_ansi
from autotune.verl.log_report import LogReader, LogReport
from autotune.verl.metrics import LoggedStep

RAY = "(TaskRunner pid=21873) "
SHORT = "step:{} - actor/entropy:0.41 - timing_s/gen:6.0 - timing_s/step:10.0 - perf/total_num_tokens:8000 - perf/throughput:100.0"


def read(text: str) -> tuple[list[LoggedStep], LogReport]:
    steps: list[LoggedStep] = []
    reader = LogReader(steps.append)
    reader.feed(text.encode())
    reader.close()
    return steps, reader.report()


def numbers(text: str) -> list[int]:
    return [step.step for step in read(text)[0]]


@pytest.mark.parametrize(
    ("line", "who", "message"),
    [
        ("\x1b[36m(TaskRunner pid=7, ip=10.0.0.5)\x1b[0m hello", "TaskRunner", "hello"),
        ("2026-02-03T14:20:51.565839352Z (WorkerDict pid=9) hello", "WorkerDict", "hello"),
        ("2026-02-03T14:20:51.565839352Z stdout F hello", "", "hello"),
        ("[2026-02-03 14:20:50] [rank0] 日志 | (TaskRunner pid=9, ip=10.0.0.7) hello", "TaskRunner", "hello"),
        (
            "(vLLMHttpServer pid=1) (EngineCore_DP0 pid=2) ERROR 02-03 09:00:11 [core.py:708] ValueError: no",
            "EngineCore_DP0",
            "ValueError: no",
        ),
        ("(pid=12) 2026-11-30 06:31:55,772 - WARNING - transfer_queue.utils - hello", "actor", "hello"),
        ("(raylet, ip=10.0.0.5) hello", "raylet", "hello"),
        ("(TaskRunner pid=7) hello [repeated 7x across cluster]", "TaskRunner", "hello"),
        ("3: hello", "", "hello"),
        ("hello (pid=22, ip=10.0.0.5, actor_id=bb)", "", "hello (pid=22, ip=10.0.0.5, actor_id=bb)"),
        ("", "", ""),
    ],
)
def test_what_stands_around_a_message_is_taken_off(line: str, who: str, message: str) -> None:
    assert split_prefix(line) == (who, message)


def test_colours_and_titles_are_taken_off() -> None:
    assert strip_ansi("\x1b[1;31mred\x1b[0m \x1b]0;title\x07 plain \x1b(B") == "red  plain "


def test_numbers_of_every_release_are_read() -> None:
    step = parse_step(
        "step:3 - timing_s/step:10.000 - a/b:np.float64(0.31) - a/c:np.int32(2) - a/d:1e-06 - a/e:nan - a/f:-inf - a/g:True - a/h:7"
    )
    assert step is not None
    assert {name: value for name, value in step.metrics.items() if name != "a/e"} == {
        "timing_s/step": 10.0, "a/b": 0.31, "a/c": 2.0, "a/d": 1e-06, "a/f": -math.inf, "a/h": 7,
    }  # fmt: skip
    assert math.isnan(step.metrics["a/e"] or 0.0)


def test_names_may_hold_signs_and_colons() -> None:
    step = parse_step("step:0 - val-core/org/set/reward/mean@1:0.5 - val-aux/a b/x:y/min:2")
    assert step is not None
    assert step.metrics == {"val-core/org/set/reward/mean@1": 0.5, "val-aux/a b/x:y/min": 2}


@pytest.mark.parametrize(
    "line",
    [
        RAY + "[response] step:1 - first we add 3:4 - result:7",
        RAY + "[response] " + SHORT.format(9),
        RAY + "step:2 - multiply both sides - answer:12",
        RAY + "step:2 - speed:3.0 - time:4.0",
        RAY + "the log says " + SHORT.format(9),
        "Let us think. " + SHORT.format(9),
        RAY + "(TaskRunner pid=1) said: (TaskRunner pid=2) " + SHORT.format(9),
        RAY + "'max_num_seqs': 1024, 'step:1 - x': 3",
        "step:",
        "step:1",
        "step:1 - ",
        "step:one - timing_s/step:1.0",
        "steps:1 - timing_s/step:1.0",
    ],
)
def test_text_that_looks_like_a_step_is_none(line: str) -> None:
    assert numbers(f"{RAY}{SHORT.format(1)}\n{line}\n{RAY}{SHORT.format(2)}\n") == [1, 2]


@pytest.mark.parametrize("ending", ["", "\n", "\r\n", "\x1b[0m\n", " [repeated 2x across cluster]\n", "\rTraining Progress:   7%|█| 1/14 [01:11<1:00, 201.3s/it]\n",
                                     "Training Progress:   7%|█| 1/14 [01:11<1:00, 201.3s/it]\n", "(WorkerDict pid=3) WARNING hello\n"])  # fmt: skip
def test_what_follows_the_last_number_does_not_change_it(ending: str) -> None:
    (step,), _ = read(RAY + SHORT.format(1) + ending)
    assert step.metrics["perf/throughput"] == 100.0


def test_a_progress_bar_may_stand_before_a_step_without_prefix() -> None:
    assert numbers("Training Progress:   7%|█  | 1/14 [01:11<1:00:01, 201.31s/it]" + SHORT.format(2) + "\n") == [2]


@pytest.mark.parametrize("width", [60, 80, 99, 132, 200, 333])
@pytest.mark.parametrize("how", ["hard", "words", "prefixed"])
def test_broken_lines_are_put_together(cases: Path, width: int, how: str) -> None:
    text = (cases / "l05_console_numpy2_reprs.log").read_text()
    whole, _ = read(text)
    lines = []
    for line in text.splitlines():
        if how == "hard":
            lines += [line[at : at + width] for at in range(0, len(line), width)]
        elif how == "words":
            lines += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        else:
            words = textwrap.wrap(line.removeprefix(RAY), width, break_long_words=False, break_on_hyphens=False)
            lines += [RAY + part for part in words]
    assert read("\n".join(lines) + "\n")[0] == whole


@pytest.mark.parametrize(
    "line", ["66", "- a note", "- score:5", "e-05", ")", "7.5 - seven", "Killed", "[36m", "-", "np"]
)
def test_a_line_after_a_whole_step_is_not_joined_to_it(line: str) -> None:
    (first, second), _ = read(f"{SHORT.format(1)}\n{line}\n{SHORT.format(2)}\n")
    assert first.metrics["perf/throughput"] == second.metrics["perf/throughput"] == 100.0
    assert first.metrics.keys() == second.metrics.keys()


def test_a_step_printed_twice_counts_once() -> None:
    assert numbers(f"{RAY}{SHORT.format(1)}\n{RAY}{SHORT.format(1)}\n{RAY}{SHORT.format(2)}\n") == [1, 2]


def test_two_runs_in_one_file_are_told_apart_and_the_last_is_scored() -> None:
    slow = SHORT.replace("perf/throughput:100.0", "perf/throughput:50.0").replace("step:10.0", "step:20.0")
    text = "".join(f"{line}\n" for line in [*map(SHORT.format, (1, 2, 3)), *map(slow.format, (1, 2, 3))])
    steps, report = read(text)
    assert [step.step for step in steps] == [1, 2, 3, 1, 2, 3]
    assert (report.runs, report.score.throughput, report.score.steps_used) == (2, 50.0, 2)
    assert [row.run for row in report.rows] == [1, 1, 1, 2, 2, 2]
    assert any(warning.startswith("several_runs") for warning in report.warnings)


def test_a_second_run_that_died_at_its_first_step_leaves_the_score_of_the_first() -> None:
    _, report = read("".join(f"{SHORT.format(step)}\n" for step in (1, 2, 1)))
    assert (report.runs, report.score.throughput) == (2, 100.0)


def test_a_step_cut_off_by_the_end_of_the_file_keeps_only_what_is_sure() -> None:
    whole = SHORT.format(2).replace(
        "perf/total_num_tokens:8000 - perf/throughput:100.0",
        "perf/total_num_tokens:1180000 - perf/time_per_step:196.1003223350632 - perf/throughput:752.1660252448584",
    )
    torn = read(f"{SHORT.format(1)}\n{whole[:-15]}")[0][-1]
    assert torn.step == 2
    assert "perf/throughput" not in torn.metrics
    assert read(f"{SHORT.format(1)}\n{whole}")[0][-1].metrics["perf/throughput"] == 752.1660252448584
    assert numbers(f"{SHORT.format(1)}\n{SHORT.format(2)[:30]}") == [1]


def test_the_first_step_alone_gives_no_score() -> None:
    _, report = read(SHORT.format(1) + "\n")
    assert (report.score.throughput, report.score.steps_used, report.training_steps) == (None, 0, 1)


def test_an_mfu_over_one_is_refused_and_said() -> None:
    _, report = read("".join(f"{SHORT.format(step)} - perf/mfu/actor:1.8\n" for step in (1, 2)))
    assert report.score.mfu is None
    assert any("mfu_refused" in warning for warning in report.warnings)


def test_failed_generations_are_a_warning() -> None:
    _, report = read(
        f"{SHORT.format(1)}\n(AgentLoopWorkerTQ pid=3) Error in _run_prompt for uid=7: boom\n{SHORT.format(2)}\n"
    )
    assert report.failure is None
    assert any("failed_generations" in warning for warning in report.warnings)


def test_steps_of_both_loggers_in_one_file_are_read() -> None:
    assert numbers(f'{SHORT.format(1)}\n{{"step":2,"data":{{"timing_s/step":1.5}}}}\n{SHORT.format(3)}\n') == [1, 2, 3]


def test_a_line_without_end_does_not_fill_the_memory() -> None:
    reader = LogReader()
    for _ in range(40):
        reader.feed(b"x" * (1 << 20))
    reader.feed(b"\n" + SHORT.format(1).encode() + b"\n")
    reader.close()
    assert reader.report().training_steps == 1
    assert len(reader._scanner._tail) == 0


def test_a_progress_bar_without_newlines_does_not_hide_steps() -> None:
    bar = "\rTraining Progress:   7%|█| 1/14 [01:11<1:00, 201.3s/it]" * 60_000
    assert numbers(bar + "\r" + RAY + SHORT.format(1) + bar) == [1]


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"\x80" * 100 + b"\n", "日本語 шаг étape\n".encode()])
def test_any_bytes_are_read(data: bytes) -> None:
    reader = LogReader()
    reader.feed(data)
    reader.close()
    assert reader.report().failure is None


def test_spoiled_numbers_of_vllm_are_not_read() -> None:
    text = (
        "Maximum concurrency for 3,072 tokens per request: 1966.5.93x\nGPU KV cache size: , tokens\n"
        "Sleep mode freed 1.0 GiB memory, 1.2.3 GiB memory is still in use\ntotal_num_cumulative_preemption="
        + "9" * 5000
        + "\n"
    )
    assert read(text)[1].hints == {}
