"""The classifier: first cause before its echoes, the right knob and direction, and no failure in a frightening but healthy log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.values import Failure, FailureClass, Phase
from autotune.verl.failure_rules import RULES
from autotune.verl.failures import diagnose, diagnose_file
from autotune.verl.log_lines import matters

STEP = "(TaskRunner pid=21) step:{} - actor/entropy:0.4 - timing_s/gen:5.0 - timing_s/step:10.0 - perf/throughput:100.0"
DRIVER = "Error executing job with overrides: ['trainer.n_gpus_per_node=8']\nTraceback (most recent call last):\n"
TASK = (
    "ray.exceptions.RayTaskError({0}): ray::TaskRunner.run() (pid=21, ip=10.0.0.5, actor_id=aa, repr=<main_ppo.TaskRunner>)\n"
    '  File "/opt/verl/verl/trainer/ppo/ray_trainer.py", line 1230, in fit\n'
    "ray.exceptions.RayTaskError({0}): ray::WorkerDict.{1}() (pid=22, ip=10.0.0.5, actor_id=bb, repr=<WorkerDict>)\n"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.27 GiB. GPU 3 has a total capacity of 79.11 GiB of which 5.13 GiB"
    " is free. Including non-PyTorch memory, this process has 73.97 GiB memory in use."
)
VLLM = "(EngineCore_DP0 pid=5120) ERROR 02-03 09:00:11 [core.py:708] "
SHARED = "(vLLMHttpServer pid=16683) (Worker pid=17284) ERROR 11-30 20:55:55 [multiproc_executor.py:1000] "
CORE = "(vLLMHttpServer pid=5001) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"


def found(text: str, **known: Any) -> Failure:
    failure = diagnose(text.splitlines(keepends=True), **known)
    assert failure is not None
    return failure


@pytest.mark.parametrize(
    ("text", "phase", "knob"),
    [
        (TASK.format("OutOfMemoryError", "actor_rollout_update_actor") + OOM, Phase.UPDATE_ACTOR, "actor.ppo_micro_batch_size_per_gpu"),
        (
            TASK.format("OutOfMemoryError", "actor_rollout_compute_log_prob") + OOM,
            Phase.OLD_LOG_PROB,
            "rollout.log_prob_micro_batch_size_per_gpu",
        ),
        (  # one worker for the actor and its reference, as on one H200 with verl 0.9.1
            TASK.format("OutOfMemoryError", "actor_rollout_ref_compute_log_prob") + OOM,
            Phase.OLD_LOG_PROB,
            "rollout.log_prob_micro_batch_size_per_gpu",
        ),
        (
            TASK.format("OutOfMemoryError", "actor_rollout_ref_compute_ref_log_prob") + OOM,
            Phase.REF,
            "ref.log_prob_micro_batch_size_per_gpu",
        ),
        (
            TASK.format("OutOfMemoryError", "ref_compute_ref_log_prob")
            + '  File "/opt/verl/verl/workers/actor/dp_actor.py", line 402, in compute_log_prob\n'
            + OOM,
            Phase.REF,
            "ref.log_prob_micro_batch_size_per_gpu",
        ),
        (TASK.format("OutOfMemoryError", "critic_update_critic") + OOM, Phase.UPDATE_CRITIC, "critic.ppo_micro_batch_size_per_gpu"),
        (TASK.format("OutOfMemoryError", "critic_compute_values") + OOM, Phase.VALUES, "critic.ppo_infer_max_token_len_per_gpu"),
        (TASK.format("OutOfMemoryError", "actor_rollout_init_model") + OOM, Phase.INIT_MODEL, "param_offload"),
        (TASK.format("OutOfMemoryError", "actor_rollout_save_checkpoint") + OOM, Phase.SAVE_CHECKPOINT, "save_freq=-1"),
        (
            TASK.format("RuntimeError", "actor_rollout_generate_sequences")
            + '  File "/opt/verl/verl/workers/sharding_manager/fsdp_vllm.py", line 150, in __enter__\n'
            + "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:62",
            Phase.WAKE_UP,
            "Lower rollout.gpu_memory_utilization",
        ),
        ("(WorkerDict pid=9) [torch_memory_saver.cpp] CUresult error: 2 (out of memory)  file=csrc/utils.h func=cu_mem_create line=103",
         Phase.WAKE_UP, "Lower rollout.gpu_memory_utilization"),
        (
            VLLM + 'File "/opt/vllm/v1/worker/gpu_model_runner.py", line 3000, in capture_model\n' + VLLM + OOM,
            Phase.INIT_ROLLOUT,
            "rollout.max_num_seqs",
        ),
        (
            VLLM + 'File "/opt/vllm/v1/engine/core.py", line 700, in run_busy_loop\n'
            + VLLM + 'File "/opt/vllm/v1/worker/gpu_model_runner.py", line 3000, in execute_model\n' + VLLM + OOM,
            Phase.GEN,
            "rollout.max_num_seqs",
        ),
    ],
)  # fmt: skip
def test_gpu_memory_names_the_knob_of_the_phase(text: str, phase: Phase, knob: str) -> None:
    failure = found(text + "\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.")
    assert (failure.failure_class, failure.phase, failure.retryable) == (FailureClass.OOM_GPU, phase, False)
    assert knob in failure.remedy


@pytest.mark.parametrize(
    ("text", "wanted", "phase", "retryable", "words"),
    [
        (
            VLLM + "ValueError: Free memory on device cuda:0 (7.34/139.72 GiB) on startup is less than desired GPU memory utilization"
            " (0.9, 125.75 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n" + CORE,
            FailureClass.VLLM_STARTUP, Phase.INIT_ROLLOUT, True, "left-over processes",
        ),
        (
            "(WorkerDict pid=3) AssertionError: rollout world_size: 1 is not divisible by infer_tp: 2",
            FailureClass.CONFIG_ASSERTION, Phase.INIT_ROLLOUT, False, "rollout.tensor_model_parallel_size (2",
        ),
        (
            "Could not override 'actor_rollout_ref.rollout.use_dynamic_bsz'.\nTo append to your config use +actor_rollout_ref.rollout.use_dynamic_bsz=True"
            "\nKey 'use_dynamic_bsz' is not in struct\n    full_key: actor_rollout_ref.rollout.use_dynamic_bsz\n    object_type=dict",
            FailureClass.CONFIG_HYDRA, Phase.CONFIG, False, "A leading + only hides it",
        ),
        (
            "hydra.errors.OverrideParseException: Error parsing override 'data.train_files=[a,b'\nmismatched input '<EOF>' expecting ']'",
            FailureClass.CONFIG_HYDRA, Phase.CONFIG, False, "quote",
        ),
        (
            "[rank3]:[E1103 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout:"
            " WorkNCCL(SeqNum=60103, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
            "\nray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            FailureClass.NCCL_TIMEOUT, Phase.UNKNOWN, False, "ALLREDUCE",
        ),
        (
            "(SGLangHttpServer pid=8) RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            FailureClass.SGLANG_STARTUP, Phase.INIT_ROLLOUT, False, "Raise rollout.gpu_memory_utilization",
        ),
        (
            "(SGLangHttpServer pid=8) RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 …",
            FailureClass.SGLANG_STARTUP, Phase.INIT_ROLLOUT, False, "SGLang did not start",
        ),
        (
            "RuntimeError: Worker failed with error 'Available memory on node 0 (0.23/23.0 GiB) on kv cache allocation is less than requested"
            " memory for kv (-0.48/0.23 GiB)', please check the stack trace above for the root cause",
            FailureClass.VLLM_KV_CACHE, Phase.INIT_ROLLOUT, False, "Raise rollout.gpu_memory_utilization",
        ),
        (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig\n  Value error, max_num_batched_tokens (128)"
            " must be greater than or equal to max_num_seqs (256). [type=value_error]",
            FailureClass.CONFIG_ASSERTION, Phase.INIT_ROLLOUT, False, "at least 256",
        ),
        (
            "dataclasses.FrozenInstanceError: Field 'max_num_batched_tokens' is frozen and cannot be modified",
            FailureClass.CONFIG_ASSERTION, Phase.INIT_ROLLOUT, False, "max_num_batched_tokens",
        ),
        (
            "TypeError: unsupported operand type(s) for %: 'int' and 'NoneType'",
            FailureClass.CONFIG_ASSERTION, Phase.UNKNOWN, False, "micro-batch key is null",
        ),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=881.0. Some of the step tasks have been OOM Killed.",
            FailureClass.OOM_HOST, Phase.UNKNOWN, False, "GPU knobs do not help",
        ),
        (
            "ray.exceptions.ActorDiedError: The actor died because its node has died.",
            FailureClass.RAY_ACTOR_DIED, Phase.UNKNOWN, True, "node",
        ),
        (
            "*** SIGTERM received at time=1770000000 on cpu 3 ***\nray.exceptions.ActorDiedError: The actor died unexpectedly",
            FailureClass.INTERRUPTED, Phase.UNKNOWN, True, "stopped from outside",
        ),
        (
            'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nKeyboardInterrupt',
            FailureClass.INTERRUPTED, Phase.UNKNOWN, True, "stopped from outside",
        ),
        (
            DRIVER + TASK.format("KeyError", "actor_rollout_generate_sequences") + "KeyError: 'reward_model'",
            FailureClass.UNKNOWN, Phase.GEN, False, "No known failure",
        ),
    ],
)  # fmt: skip
def test_each_kind_of_failure_is_known(
    text: str, wanted: FailureClass, phase: Phase, retryable: bool, words: str
) -> None:
    failure = found(text)
    assert (failure.failure_class, failure.phase, failure.retryable) == (wanted, phase, retryable)
    assert words in failure.remedy


def test_the_first_cause_wins_over_its_echoes_on_other_ranks() -> None:
    failure = found(
        "[rank5]:[E1103] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLGATHER)\n"
        + TASK.format("OutOfMemoryError", "actor_rollout_update_actor")
        + OOM
        + "\n*** SIGTERM received at time=1 on cpu 3 ***"
    )
    assert failure.failure_class is FailureClass.OOM_GPU


def test_the_phase_may_stand_at_a_later_report_of_the_same_error() -> None:
    failure = found(f"(WorkerDict pid=9) {OOM}\n" + TASK.format("OutOfMemoryError", "actor_rollout_update_actor") + OOM)
    assert failure.phase is Phase.UPDATE_ACTOR


@pytest.mark.parametrize(
    "text",
    [
        "(TaskRunner pid=2) [response] RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB, said the model",
        "(TaskRunner pid=2)  'nccl_timeout': 600, 'oom_protection': False, 'error_rate': 0.0",
        "(raylet) 0 Workers (tasks / actors) killed due to memory pressure (OOM), 3 Workers crashed due to other reasons",
        "(EngineCore_DP0 pid=88) WARNING 02-03 10:06:00 [scheduler.py:1057] Sequence group 12 is preempted because there is not enough KV cache",
        "NCCL_TIMEOUT=1800\n0 errors, 0 failed",
        "Exception ignored in: <function Dataset.__del__ at 0x7f>",
        "(WorkerDict pid=2) This might cause deadlock in distributed execution.",
        "(RewardLoopWorker pid=2) Traceback (most recent call last):\n(RewardLoopWorker pid=2) ValueError: cannot parse the answer",
        "",
    ],
)
def test_frightening_words_alone_are_no_failure(text: str) -> None:
    assert diagnose(text.splitlines()) is None


def test_an_error_that_the_run_survived_is_no_failure() -> None:
    text = f"{STEP.format(1)}\nTraceback (most recent call last):\n{OOM}\n{STEP.format(2)}\n"
    assert diagnose(text.splitlines()) is None


def test_noise_of_a_shutdown_after_the_closing_line_is_no_failure() -> None:
    text = (
        f"{STEP.format(1)}\n(TaskRunner pid=21) 'Final validation metrics: None'\n*** SIGTERM received at time=1 ***\n"
        "ray.exceptions.ActorDiedError: The actor died"
    )
    assert diagnose(text.splitlines()) is None
    assert found(text, exit_code=1).failure_class is FailureClass.INTERRUPTED


def test_the_failure_of_an_earlier_run_in_the_same_file_does_not_count() -> None:
    earlier = "RuntimeError: CUDA error: out of memory\n2026-11-30 06:30:17,839 INFO worker.py:2038 -- Started a local Ray instance.\n"
    assert diagnose(earlier.splitlines()) is None
    assert found(earlier + "OSError: [Errno 28] No space left on device").failure_class is FailureClass.DISK_FULL


def test_a_run_without_an_error_is_unfinished_unless_somebody_says_how_it_ended() -> None:
    text = "Total training steps: 125\n\rTraining Progress:   0%|          | 0/125 [04:45<?, ?it/s]"
    assert diagnose([text]) is None
    hung = found(text, ended_by="watchdog")
    assert (hung.failure_class, hung.retryable) == (FailureClass.HANG_NO_PROGRESS, False)
    assert "0/125 [04:45" in hung.evidence
    assert found(text, ended_by="time_limit").failure_class is FailureClass.HANG_NO_PROGRESS
    limited = found(text, ended_by="time_limit", steps_seen=2)
    assert (limited.failure_class, limited.retryable) == (FailureClass.INTERRUPTED, True)
    assert found(text, ended_by="user").failure_class is FailureClass.INTERRUPTED


def test_the_watchdogs_own_signal_is_not_the_cause() -> None:
    failure = found(
        "hello\n*** SIGTERM received at time=1 on cpu 0 ***\nray.exceptions.ActorDiedError: died", ended_by="watchdog"
    )
    assert failure.failure_class is FailureClass.HANG_NO_PROGRESS


def test_a_cause_in_the_log_is_told_even_if_the_run_was_ended_from_outside() -> None:
    assert found(OOM, ended_by="watchdog").failure_class is FailureClass.OOM_GPU


@pytest.mark.parametrize(
    ("exit_code", "wanted", "retryable"),
    [(1, FailureClass.UNKNOWN, False), (137, FailureClass.UNKNOWN, False), (-9, FailureClass.UNKNOWN, False),
     (143, FailureClass.INTERRUPTED, True), (-15, FailureClass.INTERRUPTED, True), (130, FailureClass.INTERRUPTED, True)],
)  # fmt: skip
def test_an_exit_status_without_words_is_unknown_or_a_signal(
    exit_code: int, wanted: FailureClass, retryable: bool
) -> None:
    failure = found("the last words", exit_code=exit_code)
    assert (failure.failure_class, failure.retryable, failure.evidence) == (wanted, retryable, "the last words")


def test_evidence_is_one_clean_redacted_line() -> None:
    failure = found(
        "\x1b[36m(TaskRunner pid=21, ip=10.0.0.5)\x1b[0m ValueError: No available memory for the cache blocks. HF_TOKEN=hf_abcdefghijklmnopqrst"
        " at https://user:hunter22@host/x hf_abcdefghijklmnopqrst [repeated 2x across cluster]" + " and on" * 200
    )
    assert failure.evidence.startswith(
        "ValueError: No available memory for the cache blocks. HF_TOKEN=*** at https://***@host/x ***"
    )
    assert len(failure.evidence) <= 500


def test_a_file_and_its_lines_say_the_same(cases: Path) -> None:
    for path in sorted(cases.glob("f*.log")):
        assert diagnose_file(path, exit_code=1) == diagnose(path.read_bytes().decode().split("\n"), exit_code=1)


def test_every_rule_is_reached_by_the_fast_look_at_lines(cases: Path) -> None:
    """A rule whose line holds no keyword would work in a test and never on a file."""
    for path in sorted(cases.glob("f*.json")):
        expected = json.loads(path.read_text())["failure"]
        if expected is None or expected["class"] == "hang_no_progress":
            continue
        lines = path.with_suffix(".log").read_text().splitlines()
        assert found("\n".join(line for line in lines if matters(line))).failure_class.value == expected["class"]


def test_rules_have_their_own_names() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


FRAME = 'File "/opt/vllm/v1/executor/multiproc_executor.py", line 992, in worker_busy_loop\n'
PROFILING = (
    "AssertionError: Error in memory profiling. Initial free memory 79.63 GiB, current free memory 132.97 GiB. This happens when other"
    " processes sharing the same container release GPU memory while vLLM is profiling during initialization."
)


def test_a_job_that_gave_memory_back_while_vllm_measured_its_own_is_named_and_may_be_repeated() -> None:
    text = f"{SHARED}Traceback (most recent call last):\n{SHARED}{PROFILING}\n{CORE}"
    failure = found(text, exit_code=1)
    assert failure.failure_class is FailureClass.VLLM_STARTUP
    assert failure.phase is Phase.INIT_ROLLOUT
    assert failure.retryable
    assert "79.63 GiB were free, then 132.97 GiB" in failure.remedy


@pytest.mark.parametrize(
    "who", ["(Worker pid=17284)", "(Worker_TP0 pid=7)", "(EngineCore_DP0 pid=9)", "(VllmWorker-0 pid=3)"]
)
def test_what_a_process_of_the_engine_raised_is_quoted_although_no_rule_knows_it(who: str) -> None:
    """Else the line is quoted that says "see root cause above", and that the cause is not in the log."""
    prefix = f"(vLLMHttpServer pid=16683) {who} ERROR 11-30 20:55:55 [multiproc_executor.py:1000] "
    later = "(vLLMHttpServer pid=16683) (EngineCore pid=5) ERROR 11-30 20:55:56 [core.py:1231] "
    text = (
        f"{prefix}Traceback (most recent call last):\n{prefix}  {FRAME}{prefix}ValueError: the moon is too low\n"
        f"{later}Traceback (most recent call last):\n{later}  {FRAME}{later}RuntimeError: Worker failed with error 'the moon is too low'\n"
        f"{CORE}"
    )
    failure = found(text, exit_code=1)
    assert failure.failure_class is FailureClass.VLLM_STARTUP
    assert failure.evidence == "ValueError: the moon is too low"
    assert "not in this log" not in failure.remedy


def test_an_exception_of_verls_own_worker_is_none_of_the_engine() -> None:
    who = "(WorkerDict pid=22) "
    text = f"{who}Traceback (most recent call last):\n{who}  {FRAME}{who}ValueError: survived\n{CORE}"
    assert "Engine core initialization failed" in found(text, exit_code=1).evidence
