"""The warm runner, driven with the double of verl: what one launch measures, what it survives, what goes elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from autotune.measure.cold import ColdRunner
from autotune.measure.conformance import check_closes, check_measures, check_rejects, check_stops
from autotune.measure.runner import Event, Limits, Order, Outcome, Runner, StepPlan, StepSeen
from autotune.measure.warm import WarmRunner
from autotune.search.memory import predicted_oom
from autotune.search.seat import reseat
from autotune.values import Failure, FailureClass, KnobValue, Measurement, MemoryCheck, Phase, Point, Source
from autotune.verl import keys
from autotune.verl.knobs import catalogue
from autotune.verl.settings import baseline_point, changed_keys, configuration, rejected_echo
from tests.fakes.launches import composed_config, job_of_double

QUICK = Limits(startup=20.0, step_floor=1.0, step_factor=0.01, after_error=5.0, after_oom=0.5, exit=5.0, terminate=1.0)
PLAN = StepPlan(at_least=2, at_most=4, agreement=0.05)
KNOBS = catalogue("0.9.1")
TURNED = (
    keys.DYNAMIC,
    keys.ACTOR_MICRO_BATCH,
    keys.ACTOR_TOKENS,
    keys.LOG_PROB_MICRO_BATCH,
    keys.LOG_PROB_TOKENS,
    keys.GPU_MEMORY,
    keys.MAX_NUM_SEQS,
    keys.MAX_BATCHED_TOKENS,
    keys.TENSOR_PARALLEL,
    keys.FAST_POLL,
)


class Recorder(Runner):
    """Stands for the cold runner; remembers what was given to it."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def measure(self, order: Order, watch: Callable[[Event], None]) -> Outcome:
        self.given.append(order.label)
        return Failure(FailureClass.UNKNOWN, Phase.UNKNOWN, "none", "the cold runner was asked", False)

    def stop(self, *, now: bool) -> None:
        pass

    def close(self) -> None:
        pass


class Stand:
    """A warm runner over the double, and orders for it."""

    def __init__(
        self,
        folder: Path,
        *,
        every: int = 10,
        ceilings: Mapping[str, int] | None = None,
        reward="replay",
        gpus: int = 8,
        limits: Limits = QUICK,
        **faults: str,
    ):
        config = composed_config()
        job = job_of_double(folder, gpus=gpus, **faults)
        self.folder = folder
        self.cold = Recorder()
        self.job = job
        self.baseline = baseline_point([KNOBS[key] for key in TURNED], config)
        self.runner = WarmRunner(
            job,
            self.cold,
            baseline=self.baseline,
            configure=lambda point: configuration(
                config, changed_keys(point, self.baseline, KNOBS, user_keys=()), KNOBS, user_keys=()
            ),
            folder=folder / "sessions",
            ceilings={keys.MAX_NUM_SEQS: 512} if ceilings is None else ceilings,
            limits=limits,
            baseline_every=every,
            reward=reward,
            predicted_oom=predicted_oom,
            reseat=reseat,
        )
        self.said: list[str] = []

    def order(self, label: str, *, fresh: bool = False, plan: StepPlan = PLAN, **values: KnobValue) -> Order:
        point = Point.of({**self.baseline.as_dict(), **{getattr(keys, key): value for key, value in values.items()}})
        return Order(label, point, (), self.folder / "runs" / label, plan, fresh)

    def measure(self, label: str, **values: KnobValue) -> Measurement:
        found = self.runner.measure(self.order(label, **values), lambda event: None)
        assert isinstance(found, Measurement), found
        return found

    def fails(self, label: str, **values: KnobValue) -> Failure:
        found = self.runner.measure(self.order(label, **values), lambda event: None)
        assert isinstance(found, Failure), found
        return found

    def expects_its_own_launch(self) -> Measurement:
        """The baseline in a launch of its own, as a study measures it first."""
        found = ColdRunner(self.job, limits=QUICK).measure(self.order("cold"), lambda event: None)
        assert isinstance(found, Measurement), found
        self.runner.expect(found, self.said.append)
        return found

    def sessions(self) -> int:
        return len(list((self.folder / "sessions").glob("session-*")))

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.folder) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found


@pytest.fixture
def stand(tmp_path):
    stands: list[Stand] = []

    def made(**options):
        stands.append(Stand(tmp_path, **options))
        return stands[-1]

    yield made
    for each in stands:
        each.runner.close()
        assert each.processes() == []


def test_one_launch_measures_every_live_knob(stand):
    session = stand()
    base = session.measure("base")
    found = {
        "micro": session.measure("micro", ACTOR_MICRO_BATCH=8),
        "dynamic": session.measure("dynamic", DYNAMIC=True),
        "sequences": session.measure("sequences", MAX_NUM_SEQS=256),
        "tokens": session.measure("tokens", MAX_BATCHED_TOKENS=1024),
        "memory": session.measure("memory", GPU_MEMORY=0.3),
        "poll": session.measure("poll", FAST_POLL=True),
    }
    assert {m.session for m in [base, *found.values()]} == {base.session}
    assert base.session is not None
    assert base.source is Source.WHOLE
    assert all(m.source is Source.COMPOSED for m in found.values())
    assert all(m.engine == "live" for m in [base, *found.values()])  # it was started with larger limits
    assert all(m.simulated for m in found.values())
    assert found["micro"].phase_seconds["update_actor"] < base.phase_seconds["update_actor"]
    assert found["micro"].phase_seconds["gen"] == pytest.approx(base.phase_seconds["gen"])
    assert found["sequences"].phase_seconds["gen"] < base.phase_seconds["gen"]
    assert found["sequences"].phase_seconds["update_actor"] == pytest.approx(base.phase_seconds["update_actor"])
    assert found["tokens"].phase_seconds["gen"] > base.phase_seconds["gen"]
    assert session.cold.given == []
    assert [place.label for place in session.runner.places] == list(found)


def test_what_was_asked_for_is_what_the_echo_says(stand):
    session = stand()
    found = session.measure("memory", GPU_MEMORY=0.3, MAX_NUM_SEQS=128, ACTOR_MICRO_BATCH=4)
    assert rejected_echo(found_values(session, found), found.echo, asleep_keys={keys.TENSOR_PARALLEL}) == []
    assert found.echo[keys.GPU_MEMORY] == 0.3
    assert found.echo["engine.kv_blocks"] == 0.3 * (80 << 10) - 1
    assert found.echo["engine.largest_batch"] == 128
    assert found.echo[keys.FAST_POLL] is False


def found_values(session: Stand, found: Measurement) -> dict[str, KnobValue]:
    told = json.loads((session.folder / "runs" / "memory" / "session.json").read_text())
    assert told["session"] == found.session
    return dict(told["point"])


def test_memory_is_that_of_the_worst_rank_and_gradients_are_kept_per_mini_batch(stand):
    found = stand().measure("micro", ACTOR_MICRO_BATCH=8)
    assert found.memory_gb == pytest.approx(44.58, abs=0.01)
    metrics = found.steps[-1].metrics
    assert (metrics["session/actor/loss/0"], metrics["session/actor/loss/1"]) == (0.25, 0.5)
    assert metrics["session/memory_gb/3"] == pytest.approx(found.memory_gb - 3 / 1024)


def test_a_probe_is_made_once_for_all_points_that_share_it(stand):
    session = stand()
    session.measure("micro", ACTOR_MICRO_BATCH=8)
    session.measure("sequences", MAX_NUM_SEQS=256)
    made = sum(len(spent) for spent in session.runner._spent.values())
    both = session.measure("both", ACTOR_MICRO_BATCH=8, MAX_NUM_SEQS=256)
    assert sum(len(spent) for spent in session.runner._spent.values()) == made
    assert len(both.counted) >= PLAN.at_least
    session.measure("both-again", ACTOR_MICRO_BATCH=8, MAX_NUM_SEQS=256)  # asked for again, it is measured
    assert sum(len(spent) for spent in session.runner._spent.values()) > made


def test_points_that_need_an_engine_or_a_launch_of_their_own_go_to_the_cold_runner(stand):
    session = stand()
    session.measure("base")
    session.fails("parallel", TENSOR_PARALLEL=4)
    assert session.processes() == []  # two verl jobs do not fit on the same GPUs
    session.fails("more-memory", GPU_MEMORY=0.8)
    session.runner.measure(session.order("fresh", fresh=True), lambda event: None)
    assert session.cold.given == ["parallel", "more-memory", "fresh"]


def test_on_one_rank_a_point_that_fails_leaves_the_session_and_the_next_one_is_measured(stand):
    session = stand(gpus=1)
    base = session.measure("base")
    failure = session.fails("seven", ACTOR_MICRO_BATCH=7)
    assert failure.failure_class is FailureClass.CONFIG_ASSERTION
    assert failure.phase is Phase.UPDATE_ACTOR
    assert not failure.retryable
    failure = session.fails("huge", ACTOR_MICRO_BATCH=64)
    assert failure.failure_class is FailureClass.OOM_GPU
    assert session.measure("micro", ACTOR_MICRO_BATCH=8).session == base.session


def test_a_session_that_computes_something_else_after_a_failure_is_started_again(stand):
    session = stand(gpus=1, session_hurt="1")
    base = session.measure("base")
    session.fails("huge", ACTOR_MICRO_BATCH=64)
    assert session.measure("micro", ACTOR_MICRO_BATCH=8).session != base.session


def test_on_several_ranks_a_point_that_fails_ends_the_session_and_the_next_one_is_measured_in_another(stand):
    session = stand(session_device="0")
    base = session.measure("base")
    assert session.fails("huge", ACTOR_MICRO_BATCH=64).failure_class is FailureClass.OOM_GPU
    assert session.processes() == []
    assert session.measure("micro", ACTOR_MICRO_BATCH=8).session not in (base.session, None)


def test_one_rank_that_runs_out_of_memory_ends_the_job_although_nothing_answers(stand):
    """The others wait for it in a collective: without its line in the log the step would have ten minutes."""
    patient = replace(QUICK, step_floor=600.0, after_error=600.0)
    session = stand(limits=patient, session_rank_oom="7")
    base = session.measure("base")
    failure = session.fails("hangs", ACTOR_MICRO_BATCH=8)
    assert (failure.failure_class, failure.phase) == (FailureClass.OOM_GPU, Phase.UPDATE_ACTOR)
    assert "9.00 GiB" in failure.evidence
    assert not failure.not_tried
    assert session.processes() == []
    assert session.measure("base-again").session not in (base.session, None)


def test_an_error_of_another_kind_does_not_end_the_job_as_fast(stand):
    session = stand(limits=replace(QUICK, step_floor=2.0, after_error=600.0), session_hangs="7")
    session.measure("base")
    assert session.fails("hangs", ACTOR_MICRO_BATCH=4).failure_class is FailureClass.HANG_NO_PROGRESS


def test_a_point_that_would_not_fit_is_not_tried_where_it_would_end_the_session(stand):
    session = stand()
    base = session.measure("base")
    failure = session.fails("huge", ACTOR_MICRO_BATCH=64)
    assert (failure.failure_class, failure.phase) == (FailureClass.OOM_GPU, Phase.UPDATE_ACTOR)
    assert failure.not_tried
    assert "of 80.0 GiB" in failure.evidence
    assert session.measure("micro", ACTOR_MICRO_BATCH=4).session == base.session


def test_a_point_is_tried_once_smaller_ones_have_shown_that_it_fits(stand):
    """16 trajectories take 69 GiB of 80. From the user's 2 alone nobody knows; a step with 8 and one with 4 show the slope."""
    session = stand()
    base = session.measure("base")
    found = session.measure("at-once", ACTOR_MICRO_BATCH=16)
    assert found.memory_gb == pytest.approx(69.2, rel=0.01)
    assert found.session == base.session
    failure = session.fails("twice-that", ACTOR_MICRO_BATCH=32)
    assert failure.not_tried, "118 GiB"
    assert session.measure("four", ACTOR_MICRO_BATCH=4).session == base.session


def test_a_phase_with_log_probs_alone_counts_as_well(stand):
    session = stand()
    failure = session.fails("log-probs", LOG_PROB_MICRO_BATCH=64)
    assert (failure.phase, failure.not_tried) == (Phase.OLD_LOG_PROB, True)


def test_on_one_rank_a_point_that_may_not_fit_is_tried(stand):
    session = stand(gpus=1)
    failure = session.fails("huge", ACTOR_MICRO_BATCH=64)
    assert failure.failure_class is FailureClass.OOM_GPU
    assert not failure.not_tried


def test_where_no_device_is_known_no_point_is_refused_for_its_memory(stand):
    assert not stand(session_device="0").fails("huge", ACTOR_MICRO_BATCH=64).not_tried


def test_a_session_that_is_killed_in_mid_point_loses_that_point_alone(stand):
    session = stand(session_dies="11")
    base = session.measure("base")
    kept = session.measure("micro", ACTOR_MICRO_BATCH=8)
    failure = session.fails("killed", ACTOR_MICRO_BATCH=4)
    assert failure.failure_class in (FailureClass.UNKNOWN, FailureClass.RAY_ACTOR_DIED, FailureClass.INTERRUPTED)
    assert session.processes() == []
    again = session.measure("again", LOG_PROB_MICRO_BATCH=8)
    assert again.session not in (base.session, None)
    assert [place.label for place in session.runner.places] == ["micro", "again"]
    assert kept.throughput > 0


def test_a_step_that_never_ends_is_ended_by_the_watchdog(stand):
    session = stand(session_hangs="7")
    session.measure("base")
    failure = session.fails("hangs", ACTOR_MICRO_BATCH=4)
    assert failure.failure_class is FailureClass.HANG_NO_PROGRESS
    assert session.processes() == []


def test_an_engine_that_does_not_start_with_the_largest_limits_is_started_with_the_users(stand):
    session = stand(session_ceiling="256")
    assert session.measure("base").session is not None
    assert session.runner.unsupported is None
    session.fails("large", MAX_NUM_SEQS=512)
    assert session.cold.given == ["large"]


def test_without_any_session_everything_goes_to_the_cold_runner(stand):
    session = stand(session_ceiling="16")
    session.fails("base")
    session.fails("micro", ACTOR_MICRO_BATCH=8)
    assert session.cold.given == ["base", "micro"]
    assert "did not start" in str(session.runner.unsupported)


def test_a_point_above_the_limits_of_the_session_has_it_started_again(stand):
    session = stand(ceilings={})
    base = session.measure("base")
    assert base.engine == "cold"  # the engine was started with exactly the user's values
    larger = session.measure("larger", MAX_NUM_SEQS=256)
    assert larger.session != base.session
    assert larger.echo[keys.MAX_NUM_SEQS] == 256


def test_a_memory_share_that_holds_no_sequence_is_refused_as_vllm_would(stand):
    failure = stand().fails("starved", GPU_MEMORY=0.0001)
    assert failure.failure_class is FailureClass.VLLM_KV_CACHE
    assert "predicted" in failure.evidence


def test_the_baseline_is_measured_again_and_a_slower_session_shows_in_it(stand):
    session = stand(every=2, session_slower="13:1.5")
    session.measure("base")
    for number, micro in enumerate((1, 4, 8)):
        session.measure(f"point-{number}", ACTOR_MICRO_BATCH=micro)
    session.runner.retire(PLAN)
    visits = session.runner.baselines
    assert [visit.place for visit in visits] == [0, 2, 3]
    assert visits[1].measurement.step_seconds == pytest.approx(1.5 * visits[0].measurement.step_seconds, rel=0.1)
    assert visits[0].composed.step_seconds == pytest.approx(visits[0].measurement.step_seconds, rel=0.01)


def test_a_session_that_measures_as_a_launch_of_its_own_does_is_kept(stand):
    session = stand()
    cold = session.expects_its_own_launch()
    base = session.measure("base")
    assert base.step_seconds == pytest.approx(cold.step_seconds, rel=0.01)
    assert base.echo["engine.kv_blocks"] == cold.echo["engine.kv_blocks"]
    assert session.said == []
    assert session.sessions() == 1


def test_a_session_with_a_slower_engine_is_started_again_with_smaller_limits(stand):
    """With 512 sequences generation is 14 % slower than with the user's 64, with 288 7 %, with 176 3.5 %."""
    session = stand(session_crowded="0.02")
    session.expects_its_own_launch()
    base = session.measure("base")
    assert [text.partition("(max_num_seqs ")[2].partition(")")[0] for text in session.said] == ["288", "176"]
    assert "gen" in session.said[0]
    assert session.sessions() == 3
    assert session.measure("micro", ACTOR_MICRO_BATCH=8).session == base.session
    assert session.measure("sequences", MAX_NUM_SEQS=128).session == base.session
    session.fails("large", MAX_NUM_SEQS=256)
    assert session.cold.given == ["large"]  # only in an engine that is started with its value


def test_a_session_that_stays_different_is_used_and_said_so(stand):
    session = stand(session_crowded="0.05")
    session.expects_its_own_launch()
    base = session.measure("base")
    assert session.sessions() == 3
    assert "goes on" in session.said[-1]
    assert session.measure("micro", ACTOR_MICRO_BATCH=8).session == base.session
    assert len(session.said) == 3


def test_a_session_with_the_users_own_limits_is_not_started_again(stand):
    session = stand(ceilings={}, session_slower="1:1.5")
    session.expects_its_own_launch()
    session.measure("base")
    assert session.sessions() == 1
    assert len(session.said) == 1
    assert "goes on" in session.said[0]


def test_a_point_that_the_smaller_engine_cannot_do_is_launched_by_itself(stand):
    session = stand(session_crowded="0.02")
    session.expects_its_own_launch()
    session.fails("large", MAX_NUM_SEQS=512)  # it had the first session started, before anything was known
    assert session.cold.given == ["large"]
    assert session.processes() == []


def test_responses_without_recorded_lengths_are_measured_on_whole_steps(stand):
    found = stand(session_loose="1").measure("micro", ACTOR_MICRO_BATCH=8)
    assert found.source is Source.WHOLE
    assert found.echo["engine.equal_work"] is False


def test_a_job_that_no_session_can_measure_says_why(tmp_path):
    session = Stand(tmp_path)
    runner = WarmRunner(
        session.job,
        session.cold,
        baseline=session.baseline,
        configure=lambda point: {},
        folder=tmp_path,
        verl_version="0.8.0",
    )
    assert "0.8.0" in str(runner.unsupported)
    runner.measure(session.order("base"), lambda event: None)
    assert session.cold.given == ["base"]


def test_a_stop_during_the_start_ends_it(stand):
    session = stand(step_seconds="5")
    threading.Timer(1.0, lambda: session.runner.stop(now=True)).start()
    assert session.fails("base").failure_class is FailureClass.INTERRUPTED
    assert session.processes() == []


def test_the_private_folder_with_the_socket_goes_with_the_session(stand):
    session = stand()
    session.measure("base")
    private = session.runner._bench.session._process.leftovers.private
    assert private.stat().st_mode & 0o777 == 0o700
    session.runner.close()
    assert not private.exists()


def test_the_warm_runner_keeps_the_contract_of_runners(stand):
    session = stand(step_seconds="0.2")
    check_measures(session.runner, session.order("base"))
    check_measures(session.runner, session.order("micro", ACTOR_MICRO_BATCH=8))
    check_measures(session.runner, session.order("sequences", MAX_NUM_SEQS=256))
    check_rejects(session.runner, session.order("seven", ACTOR_MICRO_BATCH=7))
    check_stops(session.runner, session.order("stopped", ACTOR_MICRO_BATCH=4, plan=StepPlan(at_least=5)))
    check_closes(session.runner)


def test_steps_are_told_while_they_are_made(stand):
    session, told = stand(), []
    found = session.runner.measure(session.order("micro", ACTOR_MICRO_BATCH=8), told.append)
    assert isinstance(found, Measurement)
    assert tuple(event.step for event in told if isinstance(event, StepSeen)) == found.steps


def test_the_cold_runner_takes_a_fresh_order_like_any_other(tmp_path):
    session = Stand(tmp_path)
    cold = ColdRunner(session.job, limits=QUICK)
    assert isinstance(cold.measure(session.order("fresh", fresh=True), lambda event: None), Measurement)


def test_rewards_are_called_in_whole_steps_and_replayed_in_generation_probes(stand):
    session = stand()
    base = session.measure("base")
    point = session.measure("poll", FAST_POLL=True)
    assert (base.echo["reward.mode"], base.echo["reward.calls"], base.echo["reward.replayed"]) == ("live", 1024.0, 0.0)
    assert (point.echo["reward.mode"], point.echo["reward.calls"]) == ("replayed", 0.0)
    assert point.echo["reward.seconds_mean"] == pytest.approx(0.25)
    assert all(step.metrics["session/reward/replayed"] == 1024.0 for step in point.counted)
    whole = session.runner.measure(replace(session.order("again", FAST_POLL=True), whole=True), lambda event: None)
    assert whole.echo["reward.mode"] == "live"


def test_rewards_are_called_in_generation_probes_on_demand(stand):
    session = stand(reward="live")
    session.measure("base")
    assert session.measure("poll", FAST_POLL=True).echo["reward.mode"] == "live"


def test_a_reward_that_cannot_be_replayed_is_called_and_the_reason_is_told(stand):
    session = stand(session_colocated="1")
    session.measure("base")
    echo = session.measure("poll", FAST_POLL=True).echo
    assert echo["reward.mode"] == "live"
    assert "reward model" in echo["reward.called_because"]


def longest(session: Stand, **values: KnobValue) -> MemoryCheck | None:
    return session.runner.longest(session.order("longest", **values).point)


def test_a_point_is_trained_once_with_trajectories_at_their_limits(stand):
    session = stand(session_short="0.25")
    session.measure("base")
    short = session.measure("micro", ACTOR_MICRO_BATCH=8)
    check = longest(session, ACTOR_MICRO_BATCH=8)
    assert check is not None
    assert check.failure is None
    assert check.peak == pytest.approx((20 + 4 * (short.memory_gb - 20)) * 2**30, rel=0.01)
    assert check.used == check.peak + (2 << 30)
    assert check.device == 80 << 30
    assert check.session == short.session
    assert session.measure("again", ACTOR_MICRO_BATCH=8).session == short.session


def test_on_several_ranks_one_that_would_not_fit_at_its_limits_is_not_trained(stand):
    session = stand(session_short="0.25")
    session.measure("base")
    micro = session.measure("micro", ACTOR_MICRO_BATCH=32)
    check = longest(session, ACTOR_MICRO_BATCH=32)
    assert check is not None
    assert check.failure is not None
    assert check.failure.not_tried
    assert check.used is None
    assert session.measure("again", ACTOR_MICRO_BATCH=32).session == micro.session


def test_on_several_ranks_parts_of_a_batch_show_that_it_fits_at_its_limits(stand):
    """8 trajectories take 45 GiB of 80, and 2 of an eighth of their length took 20.8: in proportion that would be 355."""
    session = stand(session_short="0.125")
    base = session.measure("base")
    check = longest(session, ACTOR_MICRO_BATCH=8)
    assert check is not None
    assert check.failure is None
    assert check.peak == pytest.approx(44.6 * 2**30, rel=0.01)
    assert session.measure("again", ACTOR_MICRO_BATCH=4).session == base.session


def test_on_one_rank_one_that_does_not_fit_at_its_limits_leaves_the_session(stand):
    session = stand(gpus=1, session_short="0.25")
    base = session.measure("base")
    session.measure("micro", ACTOR_MICRO_BATCH=32)
    check = longest(session, ACTOR_MICRO_BATCH=32)
    assert check is not None
    assert check.failure is not None
    assert (check.failure.failure_class, check.failure.not_tried) == (FailureClass.OOM_GPU, False)
    assert session.measure("again", ACTOR_MICRO_BATCH=4).session == base.session


def test_without_a_session_that_knows_its_device_nothing_is_trained_for_its_memory(stand):
    session = stand(session_device="0")
    assert longest(session) is None
    session.measure("base")
    assert longest(session) is None
    assert session.runner.longest_seconds() is None
    assert longest(session, TENSOR_PARALLEL=4) is None


def test_a_longest_step_may_take_as_much_longer_as_it_has_more_tokens(stand):
    """Eight times half a second is more than the 2.5 s after which another step counts as hung."""
    session = stand(limits=replace(QUICK, step_floor=2.5), session_short="0.125", step_seconds="0.5")
    assert session.runner.longest_seconds() is None
    session.measure("base")
    spent = session.runner._spent["frozen"]
    assert session.runner.longest_seconds() == pytest.approx(8 * sum(spent) / len(spent), rel=0.01)
    check = longest(session)
    assert check is not None
    assert check.failure is None


def test_what_cannot_be_made_longer_says_nothing_of_memory(stand):
    session = stand(gpus=1, session_pictures="1")
    base = session.measure("base")
    assert longest(session) is None
    assert session.measure("micro", ACTOR_MICRO_BATCH=4).session == base.session
