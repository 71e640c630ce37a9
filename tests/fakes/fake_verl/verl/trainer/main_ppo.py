"""A double of `verl.trainer.main_ppo` for fast tests. Its seconds are computed, not spent: SIMULATED.

It composes real Hydra overrides, refuses and runs out of memory with the messages of the real one, and writes the same
JSONL. What it does wrong on purpose is asked for in the environment:
    FAKE_VERL_NOISE=0.02       spread of a launch, relative
    FAKE_VERL_SEED=n           another noise
    FAKE_VERL_SLOW=phase:1.06  takes that much longer in one phase
    FAKE_VERL_HANG=start|step  stops making progress, and ignores SIGTERM
    FAKE_VERL_CHILD=1          starts a child that ignores SIGTERM and leaves a file in /dev/shm
    FAKE_VERL_CLUSTER=1        starts a "raylet" that leaves the process tree and an "EngineCore", and dies when one of them does
    FAKE_VERL_STEP_SECONDS=x   really spends x seconds on every step
    FAKE_VERL_CRASH=pattern    crashes where the arguments contain it
    FAKE_VERL_SESSION_…        see fake_session.py
    FAKE_VERL_STOLEN=share     reports, as the host's watch does elsewhere, that the hypervisor takes that share of the CPU time
    FAKE_VERL_LEAK=GiB         takes that much more memory in every step
    FAKE_VERL_DEAF=key         reports the default of a key instead of the value asked for
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # before Hydra: a launch takes half the processor time

import hydra  # noqa: E402
from hydra._internal.hydra import Hydra  # noqa: E402
from hydra.types import RunMode  # noqa: E402

Hydra.get_mode = lambda self, *_, **__: RunMode.RUN  # else the configuration is composed twice

MEMORY_GB = 80.0


def seconds_by_phase(c, noise):
    """Made-up but shaped like the real thing: fixed costs per micro-batch, a floor per token, waves of sequences."""
    actor, rollout = c.actor_rollout_ref.actor, c.actor_rollout_ref.rollout
    length = c.data.max_prompt_length + c.data.max_response_length
    sequences = c.data.train_batch_size * rollout.n / (c.trainer.n_gpus_per_node * c.trainer.nnodes)
    tokens = sequences * length

    def train(dynamic, micro, budget, per_call, per_token):
        calls = tokens / max(budget, 1) if dynamic else sequences / micro
        return calls * per_call + tokens * per_token

    admitted = min(rollout.max_num_seqs, sequences)
    prefill = 1 + 512 / rollout.max_num_batched_tokens
    gen = 0.02 * c.data.max_response_length * (sequences / admitted) ** 0.8 * prefill
    if c.trainer.v1.sampler.custom_sampler.path is None:
        gen = 2.0 * (int(gen / 2.0) + 1)  # the stock poll looks every two seconds
    dynamic = actor.use_dynamic_bsz
    phases = {
        "gen": gen,
        "old_log_prob": train(
            rollout.log_prob_use_dynamic_bsz,
            rollout.log_prob_micro_batch_size_per_gpu or 1,
            rollout.log_prob_max_token_len_per_gpu,
            0.05,
            2e-5,
        ),
        "adv": 0.05,
        "update_actor": train(
            dynamic, actor.ppo_micro_batch_size_per_gpu or 1, actor.ppo_max_token_len_per_gpu, 0.15, 6e-5
        ),
        "update_weights": 0.3,
    }
    slow, _, factor = os.environ.get("FAKE_VERL_SLOW", "").partition(":")
    return {name: value * noise * (float(factor) if name == slow else 1.0) for name, value in phases.items()}


def held_by(c, part=1.0):
    """GiB that a worker method holds for its micro-batches, by name, with trajectories that have `part` of their longest length."""
    actor, rollout = c.actor_rollout_ref.actor, c.actor_rollout_ref.rollout
    length = (c.data.max_prompt_length + c.data.max_response_length) * part

    def held(dynamic, micro, budget, per_token):
        return (budget if dynamic else (micro or 1) * length) * per_token

    log_prob = held(
        rollout.log_prob_use_dynamic_bsz,
        rollout.log_prob_micro_batch_size_per_gpu,
        rollout.log_prob_max_token_len_per_gpu,
        5e-4,
    )
    update = held(actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu, actor.ppo_max_token_len_per_gpu, 1.5e-3)
    return {"update_actor": update, "compute_log_prob": log_prob}


def out_of_memory(c, part=1.0):
    """The name of the worker method that runs out of memory, or None."""
    return next((name for name, held in held_by(c, part).items() if 20 + held > MEMORY_GB), None)


def die(message):
    print(message, file=sys.stderr, flush=True)
    sys.exit(1)


def echo(c):
    folder = os.environ.get("AUTOTUNE_ECHO_DIR")
    if not folder:
        return
    rollout, actor = c.actor_rollout_ref.rollout, c.actor_rollout_ref.actor
    values = {
        "actor_rollout_ref.rollout.max_num_seqs": rollout.max_num_seqs,
        "actor_rollout_ref.rollout.max_num_batched_tokens": rollout.max_num_batched_tokens,
        "actor_rollout_ref.rollout.gpu_memory_utilization": rollout.gpu_memory_utilization,
        "actor_rollout_ref.actor.use_dynamic_bsz": actor.use_dynamic_bsz,
    }
    if not actor.use_dynamic_bsz:
        values["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] = actor.ppo_micro_batch_size_per_gpu
    deaf = os.environ.get("FAKE_VERL_DEAF")
    if deaf in values:
        values[deaf] = 256
    if os.environ.get("FAKE_VERL_STOLEN"):
        values["host.cpu_stolen"] = float(os.environ["FAKE_VERL_STOLEN"])
    extra = {"kv_blocks": int(rollout.gpu_memory_utilization * (80 << 30)) // (1 << 20)}
    with open(os.path.join(folder, f"fake-{os.getpid()}.json"), "w") as sink:
        json.dump({"protocol": 1, "role": "fake", "pid": os.getpid(), "values": values, "extra": extra}, sink)


def hang():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


MEMBER = """
import os, signal, sys, time
driver = os.getppid()
if sys.argv[1] == "raylet":  # a daemon, as Ray's are
    if os.fork():
        os._exit(0)
    os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"/dev/shm/psm_fake_{os.environ['AUTOTUNE_JOB']}_{sys.argv[1]}", "w").write("x")
open(sys.argv[2], "w").write(str(os.getpid()))
while os.path.exists(f"/proc/{driver}"):  # as Ray's daemons, it ends some time after the driver
    time.sleep(0.5)
"""


DEATHS = {
    "raylet": "Traceback (most recent call last):\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing "
    "this task.\n\tThe actor died because its node has died. Node Id: ab\n\tthe actor's node was terminated unexpectedly: "
    "health check failed due to missing too many heartbeats",
    "EngineCore": "Traceback (most recent call last):\nvllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. "
    "See stack trace (above) for the root cause.",
}


def start_cluster():
    """Processes that the job cannot go on without: pids by name."""
    pids = {}
    for name in DEATHS:
        note = Path(os.environ["TMPDIR"], f"{name}.pid")
        subprocess.Popen([sys.executable, "-c", MEMBER, name, str(note)])
        while not (note.exists() and note.read_text()):
            time.sleep(0.02)
        pids[name] = int(note.read_text())
    return pids


def check_cluster(pids):
    for name, pid in pids.items():
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            state = "X"
        if state in "XZ":
            die(DEATHS[name])


@hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
def main(c):
    rollout, data = c.actor_rollout_ref.rollout, c.data
    gpus = c.trainer.n_gpus_per_node * c.trainer.nnodes
    if os.environ.get("FAKE_VERL_CHILD"):
        code = "import signal,time;signal.signal(signal.SIGTERM,signal.SIG_IGN);open(f'/dev/shm/psm_fake_{__import__(\"os\").getpid()}','w').write('x');time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    cluster = start_cluster() if os.environ.get("FAKE_VERL_CLUSTER") else {}
    crash = os.environ.get("FAKE_VERL_CRASH")
    if crash and any(crash in argument for argument in sys.argv):
        die(
            "Traceback (most recent call last):\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
        )
    if rollout.gpu_memory_utilization < 0.05:
        die(
            "Traceback (most recent call last):\nValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."
        )
    if os.environ.get("FAKE_VERL_HANG") == "start":
        print(
            "Traceback (most recent call last):\nAttributeError: 'Parameter' object has no attribute 'weight_loader'",
            flush=True,
        )
        hang()
    if os.environ.get("AUTOTUNE_SESSION_SOCKET"):
        from verl.trainer.fake_session import serve

        echo(c)
        serve(c, seconds_by_phase, held_by, out_of_memory, lambda: check_cluster(cluster))
        return
    phase = out_of_memory(c)
    if phase:
        die(
            "Error executing job with overrides: []\n"
            "Traceback (most recent call last):\n"
            f"ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.actor_rollout_{phase}() (pid=22010, ip=127.0.0.1, "
            "actor_id=bb02, repr=<verl.single_controller.ray.base.WorkerDict object at 0x7f01>)\n"
            f'  File "/opt/verl/verl/workers/engine_workers.py", line 905, in {phase}\n'
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 3.00 GiB is free."
        )
    echo(c)
    spread = float(os.environ.get("FAKE_VERL_NOISE", "0"))
    leak = float(os.environ.get("FAKE_VERL_LEAK", "0"))
    path = os.environ["VERL_FILE_LOGGER_PATH"]
    # By the name of the launch: with noise of its own in every run, one run of a test in forty would judge chance as a gain.
    dice = random.Random(f"{os.environ.get('FAKE_VERL_SEED', '0')} {Path(path).parent.name}")
    launch = max(0.5, dice.gauss(1.0, spread))
    really = float(os.environ.get("FAKE_VERL_STEP_SECONDS", "0.01"))
    with open(path, "wb", buffering=0) as sink:
        for step in range(1, (c.trainer.total_training_steps or 10) + 1):
            time.sleep(really)
            check_cluster(cluster)
            noise = launch * max(0.5, dice.gauss(1.0, spread / 4)) * (3.0 if step == 1 else 1.0)
            phases = seconds_by_phase(c, noise)
            tokens = data.train_batch_size * rollout.n * (data.max_prompt_length + data.max_response_length)
            seconds = sum(phases.values()) + 0.1
            metrics = {f"timing_s/{name}": value for name, value in phases.items()}
            metrics |= {
                "timing_s/step": seconds,
                "perf/time_per_step": seconds,
                "perf/total_num_tokens": tokens,
                "perf/throughput": tokens / seconds / gpus,
                "perf/mfu/actor": min(0.9, 0.02 * 60 / phases["update_actor"]),
                "actor/perf/max_memory_reserved_gb": 40.0 + leak * step,
                "actor/grad_norm": 0.5,
                "training/global_step": step,
            }
            sink.write(json.dumps({"step": step, "data": metrics}).encode() + b"\n")
            print(f"step:{step} - " + " - ".join(f"{key}:{value}" for key, value in metrics.items()), flush=True)
            if step == 2 and os.environ.get("FAKE_VERL_HANG") == "step":
                hang()


if __name__ == "__main__":
    main()
