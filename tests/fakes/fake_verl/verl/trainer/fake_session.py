"""The session part of the double: takes orders over the wire like the real trainer, with computed seconds. SIMULATED.

What it does wrong on purpose:
    FAKE_VERL_SESSION_DIES=n      is killed in the middle of its n-th order
    FAKE_VERL_SESSION_HURT=1      computes another gradient after an order that failed
    FAKE_VERL_SESSION_SLOWER=n:f  is f times slower from its n-th order on
    FAKE_VERL_SESSION_HANGS=n     never answers its n-th order
    FAKE_VERL_SESSION_LOOSE=1     cannot give responses their recorded lengths
    FAKE_VERL_SESSION_CEILING=n   does not start with max_num_seqs above n
    FAKE_VERL_SESSION_COLOCATED=1 has a reward model on its own GPUs, whose scores cannot be replayed
    FAKE_VERL_SESSION_CROWDED=f   generates slower the further its engine's max_num_seqs is above the one in effect: (ratio − 1) · f
    FAKE_VERL_SESSION_RANK_OOM=n  runs out of memory on rank 1 alone in its n-th order, and never answers it
    FAKE_VERL_SESSION_DEVICE=0    does not tell how large its GPUs are
    FAKE_VERL_SESSION_PICTURES=1  has trajectories that cannot be made longer
    FAKE_VERL_SESSION_SHORT=f     has trajectories of f times their longest length, but in longest steps
"""

import os
import random
import signal
import sys
import time

from autotune.inside import rewards, wire

BLOCK_BYTES, MEMORY = 1 << 20, 80 << 30
TRAINING = ("old_log_prob", "adv", "update_actor")
REWARD_SECONDS = 0.25


RANK_OOM = """\
Traceback (most recent call last):
ray.exceptions.RayTaskError(OutOfMemoryError): ray::WorkerDict.actor_rollout_update_actor() (pid=22011, ip=127.0.0.1)
  File "/opt/verl/verl/workers/engine_workers.py", line 905, in update_actor
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB. GPU 1 has a total capacity of 79.11 GiB of which 3.00 GiB is free."""


def wrong(name):
    return os.environ.get(f"FAKE_VERL_SESSION_{name}", "")


def applied(c, settings):
    """The configuration under the settings of an order."""
    from omegaconf import OmegaConf

    c = OmegaConf.create(OmegaConf.to_container(c, resolve=True))
    rollout, actor = c.actor_rollout_ref.rollout, c.actor_rollout_ref.actor
    update, log_prob = settings["phases"]["update_actor"], settings["phases"]["old_log_prob"]
    actor.use_dynamic_bsz = update["use_dynamic_bsz"]
    actor.ppo_micro_batch_size_per_gpu = update.get("micro_batch_size_per_gpu")
    actor.ppo_max_token_len_per_gpu = update.get("max_token_len_per_gpu", actor.ppo_max_token_len_per_gpu)
    rollout.log_prob_use_dynamic_bsz = log_prob["use_dynamic_bsz"]
    rollout.log_prob_micro_batch_size_per_gpu = log_prob.get("micro_batch_size_per_gpu")
    rollout.log_prob_max_token_len_per_gpu = log_prob.get(
        "max_token_len_per_gpu", rollout.log_prob_max_token_len_per_gpu
    )
    for name in ("max_num_seqs", "max_num_batched_tokens"):
        rollout[name] = min(rollout[name], settings["engine"].get(name, rollout[name]))
    if settings["poll_seconds"] is not None:
        c.trainer.v1.sampler.custom_sampler.path = "fast"
    return c


def told_memory(now, gpus, held, part):
    """What each rank tells of its memory, and of its GPU. Rank 0 takes most."""
    taken = int((20 + max(held(now, part).values())) * (1 << 30))
    workers = [{"rank": rank, "reserved_bytes": taken - (rank << 20), "held_bytes": 10 << 30} for rank in range(gpus)]
    device = {} if wrong("DEVICE") == "0" else {"device_bytes": MEMORY, "outside_bytes": 2 << 30}
    return workers, [device] * gpus


def serve(c, seconds_by_phase, held, out_of_memory, check):
    rollout, gpus = c.actor_rollout_ref.rollout, c.trainer.n_gpus_per_node * c.trainer.nnodes
    if wrong("CEILING") and rollout.max_num_seqs > int(wrong("CEILING")):
        print("Traceback (most recent call last):\nValueError: No available memory for the cache blocks.", flush=True)
        sys.exit(1)
    pool = int(rollout.gpu_memory_utilization * MEMORY) // BLOCK_BYTES
    engine = {
        "max_num_seqs": rollout.max_num_seqs,
        "max_num_batched_tokens": rollout.max_num_batched_tokens,
        "gpu_memory_utilization": rollout.gpu_memory_utilization,
        "kv_blocks": pool - 1,
        "kv_bytes": pool * BLOCK_BYTES,
        "pool_blocks": pool,
        "total_memory": MEMORY,
        "longest": 8,
    }
    hello = {"verl": "0.9.1+double", "world_size": gpus, "engines": [engine], "poll_seconds": 2.0}
    line = wire.connect(os.environ[wire.SOCKET], os.environ[wire.TOKEN], hello)
    dice = random.Random(int(os.environ.get("FAKE_VERL_SEED", "1")))
    spread = float(os.environ.get("FAKE_VERL_NOISE", "0"))
    orders = step = 0
    hurt = recorded = False
    while True:
        try:
            order = line.receive()
        except wire.WireClosed:
            return
        if order["type"] != "step":
            return
        orders += 1
        short = float(wrong("SHORT") or 1.0)
        seconds = float(os.environ.get("FAKE_VERL_STEP_SECONDS", "0.01"))
        time.sleep(seconds / short if order["work"] == "longest" else seconds)
        check()
        if wrong("DIES") == str(orders):
            os.kill(os.getpid(), signal.SIGKILL)
        while wrong("HANGS") == str(orders):
            time.sleep(1)
        if wrong("RANK_OOM") == str(orders):
            print(RANK_OOM, flush=True)
            while True:
                time.sleep(1)
        now = applied(c, order["settings"])
        micro = now.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu
        share = now.actor_rollout_ref.actor.ppo_mini_batch_size * rollout.n // gpus
        part = 1.0 if order["work"] == "longest" else short
        phase = out_of_memory(now, part)
        error = None
        if phase:
            phase = {"compute_log_prob": "old_log_prob"}.get(phase, phase)
            error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 3.00 GiB is free."
        elif not now.actor_rollout_ref.actor.use_dynamic_bsz and share % micro:
            phase = "update_actor"
            error = "AssertionError: data size must be divisible by force_group_size * micro_batch_size_per_gpu"
        if order["work"] == "longest" and wrong("PICTURES"):
            phase, error = "gen", "PointFailed: trajectories with pictures cannot be made longer than they are"
        if error is not None:
            hurt = True
            text = f"Traceback (most recent call last):\n{error}\n"
            print(text, flush=True)
            alone = gpus == 1  # with others, those wait for the one that failed (session_trainer.py, step)
            line.send({"type": "failure", "id": order["id"], "phase": phase, "error": text, "survived": alone})
            if not alone:
                sys.exit(1)
            continue
        step += 1
        slow, _, factor = wrong("SLOWER").partition(":")
        noise = max(0.5, dice.gauss(1.0, spread)) * (3.0 if step == 1 else 1.0)
        if slow and orders >= int(slow):
            noise *= float(factor)
        phases = seconds_by_phase(now, noise)
        limit = now.actor_rollout_ref.rollout.max_num_seqs
        phases["gen"] *= 1 + (rollout.max_num_seqs / limit - 1) * float(wrong("CROWDED") or 0)
        if order["work"] in ("frozen", "longest"):
            phases = {name: value for name, value in phases.items() if name != "gen"} | {"gen": 0.01}
        if order["work"] == "generation":
            phases = {name: value for name, value in phases.items() if name not in TRAINING}
        tokens = c.data.train_batch_size * rollout.n * (c.data.max_prompt_length + c.data.max_response_length)
        seconds = sum(phases.values()) + 0.1
        actor, log_prob = order["settings"]["phases"]["update_actor"], order["settings"]["phases"]["old_log_prob"]
        values = {
            "actor_rollout_ref.actor.use_dynamic_bsz": actor["use_dynamic_bsz"],
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": log_prob["use_dynamic_bsz"],
        }
        if not actor["use_dynamic_bsz"]:
            values["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"] = actor["micro_batch_size_per_gpu"]
        limits = order["settings"]["engine"]
        kv = limits.get("kv_blocks", pool - 1)
        trained = order["work"] != "generation"
        why = None
        if order["reward"] == rewards.REPLAY:
            why = rewards.COLOCATED if wrong("COLOCATED") else rewards.TURNS if wrong("LOOSE") else None
            why = why or (None if recorded else rewards.NOT_RECORDED)
        recorded = recorded or order["reward"] == rewards.RECORD
        count = 0 if order["work"] in ("frozen", "longest") else c.data.train_batch_size * rollout.n
        replays = order["reward"] == rewards.REPLAY and why is None
        scored = rewards.tally([REWARD_SECONDS] * count, [replays] * count) if count else {}
        workers, devices = told_memory(now, gpus, held, part)
        sequences = c.data.train_batch_size * rollout.n
        loss = 0.25 + (0.01 if hurt and wrong("HURT") else 0.0)
        line.send(
            {
                "type": "step",
                "id": order["id"],
                "step": step,
                "work": order["work"],
                "metrics": {
                    **{f"timing_s/{name}": value for name, value in phases.items()},
                    "timing_s/step": seconds,
                    "perf/time_per_step": seconds,
                    "perf/total_num_tokens": tokens,
                    "perf/throughput": tokens / seconds / gpus,
                    **scored,
                },
                "updates": {"actor": {"loss": [loss, 0.5], "grad_norm": [1.5, 1.25]}} if trained else {},
                "workers": [{**worker, "values": values} for worker in workers],
                "devices": devices if order["work"] == "frozen" else [],
                "sequence_lengths": [int(tokens / sequences * part)] * sequences
                if step == 1 or order["work"] == "longest"
                else [],
                "engines": [
                    {
                        **engine,
                        "max_num_seqs": now.actor_rollout_ref.rollout.max_num_seqs,
                        "max_num_batched_tokens": now.actor_rollout_ref.rollout.max_num_batched_tokens,
                        "kv_blocks": kv,
                        "largest_batch": min(now.actor_rollout_ref.rollout.max_num_seqs, kv // 8),
                        "refused": 0,
                        "failed_resets": 0,
                    }
                ],
                "lengths_replayed": not wrong("LOOSE"),
                "reward_called_because": why,
                "poll_seconds": order["settings"]["poll_seconds"] or 2.0,
            }
        )
