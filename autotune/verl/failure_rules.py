"""What verl, vLLM, SGLang, PyTorch, Ray, Hydra and schedulers print when a run fails, and what to do about it: data, no logic.

A rule matches the message of one line (prefixes, colours and timestamps taken off). Wordings are those of the named program.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from autotune.values import FailureClass, Phase


class Weight(IntEnum):
    """How much a line says about the cause: a cause beats everything, whatever came first."""

    UNKNOWN = 0
    """An exception that no rule knows."""
    ECHO = 1
    """What dies because something else died."""
    SUSPECT = 2
    """A cause of its own, or the echo of one on another rank."""
    STOPPED = 3
    """Somebody stopped the job."""
    CAUSE = 4


@dataclass(frozen=True, slots=True)
class Rule:
    """One wording of one failure."""

    name: str
    failure_class: FailureClass
    pattern: re.Pattern[str]
    """Matches from the start of the message; its named groups are the numbers that the remedy quotes."""
    remedy: str
    """What to change, in which direction; `{name}` stands for a group of the pattern."""
    phase: Phase | None = None
    """None: the phase is where the traceback was."""
    by_phase: Mapping[Phase, str] = field(default_factory=dict)
    """Remedies for phases that have a knob of their own."""
    weight: Weight = Weight.CAUSE
    retryable: bool = False
    detail: int = 0
    """Of lines about one failure, the one with more detail is quoted."""
    of_engine: bool = False
    """It tells only that an engine's process ended: what that process raised, where no rule knows it, is quoted instead."""


RAISED = r"(?:ray\.exceptions\.RayTaskError\(\w+\): )?"
"""How the pattern of a rule begins that only the message of an exception can match."""


def _raised(pattern: str, kinds: str = r"[\w.]*(?:Error|Exception)") -> re.Pattern[str]:
    """The pattern in the message of an exception: text that merely talks about a failure does not start like one."""
    return re.compile(
        rf"{RAISED}(?:(?:{kinds})(?:\(['\"]|: )|Value error, ).*?{pattern}",
        re.DOTALL,
    )


def _start(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


_OOM_REMEDIES = {
    Phase.UPDATE_ACTOR: (
        "Lower actor.ppo_micro_batch_size_per_gpu (with dynamic batches: actor.ppo_max_token_len_per_gpu); next, turn on gradient"
        " checkpointing or optimizer offload. Lowering rollout.gpu_memory_utilization does not help when vLLM sleeps during training."
    ),
    Phase.OLD_LOG_PROB: (
        "Lower rollout.log_prob_micro_batch_size_per_gpu (with dynamic batches: rollout.log_prob_max_token_len_per_gpu), or turn on"
        " actor.entropy_from_logits_with_chunking. actor.ppo_micro_batch_size_per_gpu does not act on this phase."
    ),
    Phase.REF: (
        "Lower ref.log_prob_micro_batch_size_per_gpu (with dynamic batches: ref.log_prob_max_token_len_per_gpu), or offload the"
        " reference model (ref.fsdp_config.param_offload)."
    ),
    Phase.VALUES: (
        "Lower critic.ppo_infer_max_token_len_per_gpu (before 0.8: critic.forward_micro_batch_size_per_gpu or"
        " critic.forward_max_token_len_per_gpu)."
    ),
    Phase.UPDATE_CRITIC: (
        "Lower critic.ppo_micro_batch_size_per_gpu or critic.ppo_max_token_len_per_gpu (the 0.9 trainer reads only"
        " critic.ppo_infer_max_token_len_per_gpu); next, gradient checkpointing or offload for the critic."
    ),
    Phase.GEN: (
        "Lower rollout.gpu_memory_utilization, rollout.max_num_seqs or rollout.max_num_batched_tokens: the engine fills its share and"
        " then needs room for activations."
    ),
    Phase.WAKE_UP: (
        "Lower rollout.gpu_memory_utilization, or turn on param_offload and optimizer_offload of the actor: vLLM maps its weights and KV"
        " cache again while the trainer's memory is still resident. Micro-batches do not act here."
    ),
    Phase.INIT_ROLLOUT: (
        "Lower rollout.max_num_seqs or rollout.cudagraph_capture_sizes (CUDA graphs and the profiling run take memory beyond the KV"
        " cache), then rollout.gpu_memory_utilization or rollout.max_num_batched_tokens."
    ),
    Phase.INIT_MODEL: (
        "The model does not fit before any batch: turn on param_offload and optimizer_offload or shard over more GPUs, and check that no"
        " other process holds the GPU. Batch sizes do not act here."
    ),
    Phase.SAVE_CHECKPOINT: (
        "Gathering the weights for the checkpoint does not fit: trials should run with trainer.save_freq=-1; else save sharded, or"
        " turn on param_offload."
    ),
}
_OOM = "Find the phase in the full log: each phase has its own micro-batch or token budget, and lowering another one does not help."
_KV_UP = (
    "Raise rollout.gpu_memory_utilization or rollout.tensor_model_parallel_size, or lower rollout.max_num_batched_tokens /"
    " rollout.max_num_seqs (activations of the profiling run): this failure needs more memory for vLLM, not less."
)

RULES: tuple[Rule, ...] = (
    # -- GPU memory -------------------------------------------------------------------------------------------------------
    Rule(
        "cumem_oom",
        FailureClass.OOM_GPU,
        re.compile(r".*CUDA Error: out of memory at .*cumem_allocator|CUDA Error: out of memory at ", re.DOTALL),
        _OOM_REMEDIES[Phase.WAKE_UP],
        phase=Phase.WAKE_UP,
        by_phase={
            Phase.INIT_ROLLOUT: _OOM_REMEDIES[Phase.INIT_ROLLOUT],
            Phase.INIT_MODEL: _OOM_REMEDIES[Phase.INIT_ROLLOUT],
        },
        detail=1,
    ),
    Rule(
        "curesult_oom",
        FailureClass.OOM_GPU,
        re.compile(
            r".*CUresult error\b.{0,20}?(?:\b2\b|out of memory)|.*CUresult error:? *\d* *\(?out of memory", re.DOTALL
        ),
        _OOM_REMEDIES[Phase.WAKE_UP] + " (SGLang's memory saver reports an out-of-memory as CUresult.)",
        phase=Phase.WAKE_UP,
    ),
    Rule(
        "vllm_warmup_oom",
        FailureClass.OOM_GPU,
        _raised(r"CUDA out of memory occurred when warming up sampler with (?P<requests>\d+) dummy requests"),
        "Lower rollout.max_num_seqs (the sampler was warmed up with {requests} requests) or rollout.gpu_memory_utilization.",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    Rule(
        "sglang_graph_oom",
        FailureClass.SGLANG_STARTUP,
        re.compile(r".*Capture cuda graph failed: .*", re.DOTALL),
        "Lower rollout.gpu_memory_utilization (SGLang's mem_fraction_static) or +rollout.engine_kwargs.sglang.cuda_graph_max_bs: CUDA"
        " graphs need memory beside the KV cache.",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    Rule(
        "torch_oom",
        FailureClass.OOM_GPU,
        _raised(
            r"(?:CUDA|HIP|NPU|XPU) out of memory(?:\. Tried to allocate (?P<tried>[\d.]+ [KMGT]iB))?(?:.*?GPU (?P<gpu>\d+))?",
            r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError|RuntimeError|torch\.AcceleratorError",
        ),
        _OOM,
        by_phase=_OOM_REMEDIES,
        detail=2,
    ),
    Rule(
        "cuda_oom",
        FailureClass.OOM_GPU,
        _raised(
            r"(?:CUDA (?:driver )?error: out of memory|cudaErrorMemoryAllocation|CUBLAS_STATUS_ALLOC_FAILED"
            r"|Cuda failure (?:2 )?'out of memory'|CUDNN_STATUS_ALLOC_FAILED)"
        ),
        _OOM,
        by_phase=_OOM_REMEDIES,
        detail=1,
    ),
    # -- the engine's KV cache --------------------------------------------------------------------------------------------
    Rule(
        "kv_no_blocks",
        FailureClass.VLLM_KV_CACHE,
        _raised(r"No available memory for the cache blocks"),
        _KV_UP,
        phase=Phase.INIT_ROLLOUT,
        detail=1,
    ),
    Rule(
        "kv_max_len",
        FailureClass.VLLM_KV_CACHE,
        _raised(
            r"To serve at least one request with (?:the model's|the models's) max(?:imum)? seq(?:uence)? len(?:gth)? \(?(?P<length>\d+)"
            r".*?(?P<needed>[\d.]+) GiB KV cache is needed.*?\((?P<available>[\d.]+) GiB\)"
            r"(?:.*?estimated maximum model length is (?P<fits>\d+))?"
        ),
        "Set rollout.max_model_len to data.max_prompt_length + data.max_response_length (null takes the model's whole context,"
        " {length}); if it is that already, raise rollout.gpu_memory_utilization or rollout.tensor_model_parallel_size"
        " ({needed} GiB of KV cache needed, {available} GiB there).",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    Rule(
        "kv_max_len_v0",
        FailureClass.VLLM_KV_CACHE,
        _raised(
            r"max seq len \((?P<length>\d+)\) is larger than the maximum number of tokens .*?KV cache \((?P<fits>\d+)\)"
        ),
        "Lower rollout.max_model_len to at most {fits} (it is {length}; prompt + response have to fit), or raise"
        " rollout.gpu_memory_utilization or rollout.tensor_model_parallel_size.",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    Rule(
        "kv_cpu",
        FailureClass.VLLM_KV_CACHE,
        _raised(
            r"Available memory on node .*? on kv cache allocation is less than requested memory for kv"
            r" \((?P<available>-?[\d.]+)/(?P<needed>-?[\d.]+) GiB\)"
        ),
        "Raise rollout.gpu_memory_utilization: on the CPU backend it is the engine's share of host memory, and {available} GiB were left"
        " of {needed} GiB needed for the KV cache.",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    # -- start of the engine ----------------------------------------------------------------------------------------------
    Rule(
        "vllm_free_memory",
        FailureClass.VLLM_STARTUP,
        _raised(
            r"Free memory on device .*?\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired GPU memory utilization"
            r" \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)"
        ),
        "Something else holds the GPU: {free} of {total} GiB are free and rollout.gpu_memory_utilization={share} wants {wanted} GiB. End"
        " left-over processes (an EngineCore of an earlier trial) and run again; if only the trainer is there, lower"
        " rollout.gpu_memory_utilization or offload the actor.",
        phase=Phase.INIT_ROLLOUT,
        retryable=True,
        detail=2,
    ),
    Rule(
        "vllm_memory_profiling",
        FailureClass.VLLM_STARTUP,
        _raised(
            r"Error in memory profiling\. Initial free memory (?P<before>[\d.]+) GiB, current free memory (?P<after>[\d.]+) GiB"
        ),
        "Another process gave GPU memory back while vLLM measured its own ({before} GiB were free, then {after} GiB): two jobs share the"
        " GPU, or one was just ending there. Wait until it is free (nvidia-smi), and run again.",
        phase=Phase.INIT_ROLLOUT,
        retryable=True,
        detail=2,
    ),
    Rule(
        "sglang_unbalanced",
        FailureClass.SGLANG_STARTUP,
        _raised(r"The memory capacity is unbalanced"),
        "Another process holds memory on some of the GPUs: end left-over processes of an earlier trial and run again.",
        phase=Phase.INIT_ROLLOUT,
        retryable=True,
        detail=2,
    ),
    Rule(
        "sglang_memory",
        FailureClass.SGLANG_STARTUP,
        _raised(r"Not enough memory\. Please try (?:to )?(?:increase|increasing) --mem-fraction-static"),
        "Raise rollout.gpu_memory_utilization (SGLang's mem_fraction_static, weights included) or rollout.tensor_model_parallel_size.",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    Rule(
        "sglang_dead",
        FailureClass.SGLANG_STARTUP,
        re.compile(
            r".*(?:Rank \d+ scheduler (?:died|is dead)|[Ss]cheduler died during initialization|Initialization failed\. Please see the error"
            r"|(?:SGLang|sglang) server (?:failed|terminated)|Server failed to start within|Scheduler hit an exception"
            r"|launch_server.*failed|Server process terminated)",
            re.DOTALL,
        ),
        "SGLang did not start: read the scheduler's own error above this line, check that the sglang and flashinfer versions fit verl's,"
        " and that the model and its settings are ones that this SGLang supports.",
        phase=Phase.INIT_ROLLOUT,
        weight=Weight.SUSPECT,
    ),
    Rule(
        "vllm_dead_at_start",
        FailureClass.VLLM_STARTUP,
        _raised(r"(?:Engine core initialization failed|Engine process failed to start|Failed core proc)"),
        "vLLM did not start and its root cause is not in this log: look for the first ERROR of EngineCore in the worker's own log"
        " (/tmp/ray/session_latest/logs), and run once with VLLM_LOGGING_LEVEL=INFO.",
        phase=Phase.INIT_ROLLOUT,
        weight=Weight.ECHO,
        of_engine=True,
        detail=1,
    ),
    Rule(
        "vllm_not_supported",
        FailureClass.VLLM_STARTUP,
        _raised(
            r"(?:Bfloat16 is only supported on GPUs|Model architectures .* (?:are not supported|failed to be inspected)"
            r"|is not supported for now\. Supported architectures|vllm version .* not supported|no kernel image is available)"
        ),
        "This vLLM cannot run this model on this GPU: change the versions or rollout.dtype; no tuned knob helps.",
        phase=Phase.INIT_ROLLOUT,
        detail=1,
    ),
    Rule(
        "engine_died",
        FailureClass.UNKNOWN,
        _raised(
            r"(?:EngineCore encountered an issue|Background loop has errored|The engine (?:is|has) dead)",
            r"[\w.]*Error",
        ),
        "vLLM's engine process died and its cause is not in this log: look for the first ERROR of EngineCore, and for the kernel's OOM"
        " killer (dmesg).",
        phase=Phase.GEN,
        weight=Weight.ECHO,
        of_engine=True,
    ),
    Rule(
        "cpu_weight_reload",
        FailureClass.UNKNOWN,
        _raised(r"'Parameter' object has no attribute 'weight_loader'"),
        "vLLM's CPU backend packed its weights for oneDNN and cannot load new ones: turn oneDNN off in a vLLM plugin"
        " (vllm._custom_ops._supports_onednn = False). The job hangs after this error instead of ending.",
        phase=Phase.WAKE_UP,
        weight=Weight.SUSPECT,
    ),
    # -- settings that contradict each other ------------------------------------------------------------------------------
    Rule(
        "mini_batch_not_divisible",
        FailureClass.CONFIG_ASSERTION,
        _raised(
            r"normalized ppo_mini_batch_size (?P<size>\d+) should be (?:divisible by|larger than) ppo_micro_batch_size_per_gpu"
            r" (?P<divisor>\d+)"
        ),
        "Choose ppo_micro_batch_size_per_gpu among the divisors of the mini-batch per GPU ({size} = ppo_mini_batch_size * rollout.n /"
        " (GPUs / SP)): {divisors}.",
        phase=Phase.INIT_MODEL,
        detail=2,
    ),
    Rule(
        "mini_batch_zero",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"ppo_mini_batch_size \d+ should be larger than 0 after normalization"),
        "ppo_mini_batch_size * rollout.n is smaller than the number of GPUs / SP: raise ppo_mini_batch_size (it changes the algorithm) or"
        " use fewer GPUs.",
        phase=Phase.INIT_MODEL,
        detail=2,
    ),
    Rule(
        "micro_batch_group",
        FailureClass.CONFIG_ASSERTION,
        _raised(
            r"(?:data size|(?P<size>\d+)) .{0,20}must be divisible by force_group_size \* micro_batch_size_per_gpu"
        ),
        "Choose a micro-batch that divides the sequences per GPU: for update_actor ppo_mini_batch_size * rollout.n / (GPUs / SP), for the"
        " log-prob phases train_batch_size * rollout.n / (GPUs / SP).",
        by_phase={
            Phase.OLD_LOG_PROB: "Choose rollout.log_prob_micro_batch_size_per_gpu among the divisors of train_batch_size * rollout.n /"
            " (GPUs / SP).",
            Phase.REF: "Choose ref.log_prob_micro_batch_size_per_gpu among the divisors of train_batch_size * rollout.n / (GPUs / SP).",
            Phase.UPDATE_ACTOR: "Choose actor.ppo_micro_batch_size_per_gpu among the divisors of ppo_mini_batch_size * rollout.n /"
            " (GPUs / SP).",
        },
        detail=2,
    ),
    Rule(
        "mini_batch_over_ranks",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"Got mini_batch_size=(?P<size>\d+) and self\.engine\.get_data_parallel_size\(\)=(?P<divisor>\d+)"),
        "ppo_mini_batch_size * rollout.n ({size}) must be a multiple of the data-parallel ranks ({divisor}).",
        detail=2,
    ),
    Rule(
        "train_batch_not_divisible",
        FailureClass.CONFIG_ASSERTION,
        _raised(
            r"real_train_batch_size \((?P<size>\d+)\) must be divisible by (?:minimal possible batch size|total n_gpus) \((?P<divisor>\d+)\)"
        ),
        "data.train_batch_size * rollout.n ({size}) must be a multiple of {divisor} (GPUs, times the micro-batch on Megatron). Both change"
        " the algorithm: the tuner leaves them alone, change the script.",
        phase=Phase.CONFIG,
        detail=2,
    ),
    Rule(
        "train_batch_below_mini",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"train_batch_size.*?(?:must be|should be|>=|divisible).*?ppo_mini_batch_size"),
        "data.train_batch_size must be at least actor.ppo_mini_batch_size and a multiple of it.",
        phase=Phase.CONFIG,
        detail=1,
    ),
    Rule(
        "micro_over_mini",
        FailureClass.CONFIG_ASSERTION,
        _raised(
            r"ppo_mini_batch_size \((?P<size>\d+)\) must be divisible by ppo_micro_batch_size \((?P<divisor>\d+)\)"
        ),
        "ppo_micro_batch_size (deprecated; use the …_per_gpu form) must divide ppo_mini_batch_size ({size}).",
        phase=Phase.CONFIG,
        detail=2,
    ),
    Rule(
        "model_parallel",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"n_gpus \((?P<size>\d+)\) must be divisible by model_parallel_size \((?P<divisor>\d+)\)"),
        "TP * PP ({divisor}) times CP must divide the number of GPUs ({size}).",
        phase=Phase.CONFIG,
        detail=2,
    ),
    Rule(
        "token_budget",
        FailureClass.CONFIG_ASSERTION,
        _raised(
            r"max_token_len must be greater than the sequence length\. Got max_token_len=(?P<budget>\d+) and max_seq_len="
            r"(?:tensor\()?(?P<length>\d+)"
        ),
        "Raise the token budget of this phase: times SP it must reach data.max_prompt_length + data.max_response_length (multi-turn: plus"
        " tool text); it was {budget}, a sequence had {length}.",
        by_phase={
            Phase.OLD_LOG_PROB: "Raise rollout.log_prob_max_token_len_per_gpu (times SP) to at least data.max_prompt_length +"
            " data.max_response_length (multi-turn: plus tool text): it was {budget}, a sequence had {length}.",
            Phase.REF: "Raise ref.log_prob_max_token_len_per_gpu (times SP) to at least data.max_prompt_length +"
            " data.max_response_length: it was {budget}, a sequence had {length}.",
            Phase.UPDATE_ACTOR: "Raise actor.ppo_max_token_len_per_gpu (times SP) to at least data.max_prompt_length +"
            " data.max_response_length: it was {budget}, a sequence had {length}.",
            Phase.VALUES: "Raise critic.ppo_infer_max_token_len_per_gpu (before 0.8: critic.forward_max_token_len_per_gpu) to at least"
            " {length}: it was {budget}.",
            Phase.UPDATE_CRITIC: "Raise critic.ppo_max_token_len_per_gpu (0.9: critic.ppo_infer_max_token_len_per_gpu) to at least"
            " {length}: it was {budget}.",
        },
        detail=2,
    ),
    Rule(
        "token_budget_groups",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"(?:Cannot satisfy max_token_len|A forced group exceeds max_token_len)"),
        "Raise the token budget of this phase (…max_token_len_per_gpu): its groups of sequences do not fit into one micro-batch.",
        detail=1,
    ),
    Rule(
        "equal_chunk",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"only support equal chunk\. Got size of DataProto (?P<size>\d+) and chunk (?P<divisor>\d+)"),
        "The batch ({size}) must be a multiple of the workers that it is split over ({divisor}: the GPUs, or rollout.agent.num_workers):"
        " change data.train_batch_size, or the number of agent workers.",
        phase=Phase.GEN,
        detail=2,
    ),
    Rule(
        "infer_tp",
        FailureClass.CONFIG_ASSERTION,
        _raised(
            r"rollout world_size: (?P<size>\d+) is not divisible by infer_(?:tp|world_size)[:=]? *(?P<divisor>\d+)"
        ),
        "rollout.tensor_model_parallel_size ({divisor}; the default is 2) must divide the number of GPUs ({size}): choose one of {divisors}.",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    Rule(
        "heads_tp",
        FailureClass.CONFIG_ASSERTION,
        _raised(
            r"Total number of attention heads \((?P<size>\d+)\) must be divisible by (?:the )?tensor parallel size \((?P<divisor>\d+)\)"
        ),
        "rollout.tensor_model_parallel_size ({divisor}) must divide the model's {size} attention heads.",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    Rule(
        "ulysses_heads",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"num_(?:attention|key_value)_heads.*?(?:divisible|ulysses)"),
        "ulysses_sequence_parallel_size must divide the model's attention heads: lower it.",
        phase=Phase.INIT_MODEL,
        detail=1,
    ),
    Rule(
        "micro_batch_not_set",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"Please set at least one of '(?P<old>[\w.]+)' or '(?P<key>[\w.]+)'"),
        "Set {key}, or use_dynamic_bsz=True with ppo_max_token_len_per_gpu. Without dynamic batches actor, rollout (log_prob) and ref each"
        " need their micro-batch.",
        phase=Phase.CONFIG,
        detail=2,
    ),
    Rule(
        "micro_batch_twice",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"You have set both '(?P<old>[\w.]+)' and? ?'?(?P<key>[\w.]*)"),
        "Remove {old}: verl reads only the …_per_gpu form.",
        phase=Phase.CONFIG,
        detail=2,
    ),
    Rule(
        "micro_batch_none",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"unsupported operand type\(s\) for (?:%|//): 'int' and 'NoneType'"),
        "A micro-batch key is null: set …micro_batch_size_per_gpu, or use_dynamic_bsz=True.",
        detail=1,
    ),
    Rule(
        "context_too_short",
        FailureClass.CONFIG_ASSERTION,
        _raised(
            r"max_model_len \((?P<length>\d+)\) (?:should be less than or equal to max_position_embeddings"
            r"|is greater than the derived max_model_len).*?(?P<context>\d+)\)?"
        ),
        "Prompt + response ({length}) is longer than the model's context ({context}): shorten data.max_response_length, or extend the"
        " context with override_config (rope scaling).",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    Rule(
        "batched_tokens",
        FailureClass.CONFIG_ASSERTION,
        _raised(
            r"max_num_batched_tokens \((?P<tokens>\d+)\) (?:is smaller than max_model_len|must be greater than or equal to max_num_seqs)"
            r" \((?P<limit>\d+)\)"
        ),
        "Raise rollout.max_num_batched_tokens from {tokens} to at least {limit}, or turn rollout.enable_chunked_prefill on / lower"
        " rollout.max_num_seqs.",
        phase=Phase.INIT_ROLLOUT,
        detail=2,
    ),
    Rule(
        "frozen_batched_tokens",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"Field '(?P<key>\w+)' is frozen and cannot be modified"),
        "verl tried to correct rollout.{key} and may not: set it explicitly (max_num_batched_tokens at least max_model_len), or leave"
        " rollout.enable_chunked_prefill=True.",
        phase=Phase.INIT_ROLLOUT,
        detail=1,
    ),
    Rule(
        "rollout_mode",
        FailureClass.CONFIG_ASSERTION,
        _raised(r"[Rr]ollout(?:\.mode|.{0,30}mode).{0,40}sync"),
        "rollout.mode=sync was removed in verl 0.7: use async, the default.",
        phase=Phase.CONFIG,
        detail=1,
    ),
    # -- Hydra ------------------------------------------------------------------------------------------------------------
    Rule(
        "hydra_override",
        FailureClass.CONFIG_HYDRA,
        _start(r"(?:[\w.]*Exception: )?Could not override '(?P<key>[^']+)'"),
        "`{key}` is no key of this verl: look for a spelling mistake or for the name that this release gives it. A leading + only hides it"
        " (verl would not read the key).",
        phase=Phase.CONFIG,
        detail=3,
    ),
    Rule(
        "hydra_struct",
        FailureClass.CONFIG_HYDRA,
        _start(r"(?:[\w.]*(?:Error|Exception): )?(?:Error merging override|Key '(?P<key>[^']+)' is not in struct)"),
        "`{key}` is no key of this verl: look for a spelling mistake or for the name that this release gives it. A leading + only hides it"
        " (verl would not read the key).",
        phase=Phase.CONFIG,
        detail=1,
    ),
    Rule(
        "hydra_append",
        FailureClass.CONFIG_HYDRA,
        _start(r"(?:[\w.]*Exception: )?Could not append to config\. An item is already at '(?P<key>[^']+)'"),
        "`{key}` exists: take the + away (or use ++).",
        phase=Phase.CONFIG,
        detail=2,
    ),
    Rule(
        "hydra_delete",
        FailureClass.CONFIG_HYDRA,
        _start(r"(?:[\w.]*Exception: )?Could not delete from config\. '?(?P<key>[\w.]+)"),
        "`{key}` is not there to be deleted: remove the ~ override.",
        phase=Phase.CONFIG,
        detail=2,
    ),
    Rule(
        "hydra_grammar",
        FailureClass.CONFIG_HYDRA,
        _start(
            r"(?:[\w.]*(?:Exception|Error): )?(?:Error parsing override '(?P<key>[^']*)|mismatched input '|token recognition error"
            r"|no viable alternative at input|missing EQUAL at|extraneous input '|LexerNoViableAltException|Error when parsing index)"
        ),
        "Hydra cannot read this override: quote the value ('key=\"…\"'), and write lists as [a,b] in quotes.",
        phase=Phase.CONFIG,
        detail=1,
    ),
    Rule(
        "hydra_missing",
        FailureClass.CONFIG_HYDRA,
        _raised(
            r"(?:Missing mandatory value: (?P<key>[\w.]+)|Cannot find primary config|Could not load|Could not find '|Interpolation key)"
        ),
        "A value or a config file that verl needs is missing: set it in the command.",
        phase=Phase.CONFIG,
        detail=1,
    ),
    Rule(
        "hydra_instantiate",
        FailureClass.CONFIG_HYDRA,
        _raised(r"got an unexpected keyword argument '(?P<key>\w+)'", r"[\w.]*InstantiationException|TypeError"),
        "verl's config class has no field `{key}`: remove the override, or use the name that this release gives it.",
        phase=Phase.CONFIG,
        weight=Weight.SUSPECT,
        detail=1,
    ),
    Rule(
        "omegaconf",
        FailureClass.CONFIG_HYDRA,
        re.compile(
            r"(?:omegaconf\.errors\.|hydra\.errors\.)?(?:ConfigAttributeError|ConfigKeyError|ConfigCompositionException"
            r"|OverrideParseException|MissingConfigException|MissingMandatoryValue|InterpolationKeyError): .*",
            re.DOTALL,
        ),
        "The config does not compose: read Hydra's message in the log; a key is misspelt, moved or missing.",
        phase=Phase.CONFIG,
    ),
    # -- host memory ------------------------------------------------------------------------------------------------------
    Rule(
        "ray_memory_numbers",
        FailureClass.OOM_HOST,
        _start(
            r"Memory on the node .*? was (?P<used>[\d.]+ ?[KMGT]i?B) / (?P<total>[\d.]+ ?[KMGT]i?B) \((?P<share>[\d.]+)\), which exceeds the"
            r" memory usage threshold of (?P<limit>[\d.]+)"
        ),
        "Host RAM is full ({used} of {total}): offload less (param_offload / optimizer_offload), fewer dataloader or agent workers, or more"
        " RAM. GPU knobs do not help.",
        detail=3,
    ),
    Rule(
        "ray_memory",
        FailureClass.OOM_HOST,
        re.compile(
            r"ray\.exceptions\.OutOfMemoryError: .*|.*(?<!\d)[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure \(OOM\).*"
            r"|.*Task was killed due to the node running low on memory.*",
            re.DOTALL,
        ),
        "Host RAM is full: offload less (param_offload / optimizer_offload), fewer dataloader or agent workers, or more RAM. GPU knobs do"
        " not help.",
        detail=1,
    ),
    Rule(
        "kernel_oom",
        FailureClass.OOM_HOST,
        re.compile(
            r".*(?:Out of memory: Kill(?:ed)? process \d+|[Oo]om[-_]kill(?:er)? event|Detected \d+ oom[-_]kill|task .*? OOM Killed"
            r"|OOMKilled|Memory cgroup out of memory|invoked oom-killer)",
            re.DOTALL,
        ),
        "The kernel or the container limit killed a process for host RAM: offload less, fewer dataloader or agent workers, or a larger memory"
        " limit. GPU knobs do not help.",
        detail=2,
    ),
    Rule(
        "host_allocation",
        FailureClass.OOM_HOST,
        re.compile(
            r"(?:[\w.]*Error: .*?(?:DefaultCPUAllocator: can't allocate memory|\[Errno 12\] Cannot allocate memory|unable to mmap"
            r"|Unable to allocate [\d.]+ [KMGT]iB)|MemoryError(?:$|: )|.*Unexpected bus error encountered in worker)",
            re.DOTALL,
        ),
        "Host RAM (or /dev/shm) is full: offload less, fewer dataloader or agent workers, a larger /dev/shm, or more RAM.",
        detail=1,
    ),
    # -- disk -------------------------------------------------------------------------------------------------------------
    Rule(
        "disk_full",
        FailureClass.DISK_FULL,
        _raised(
            r"(?:\[Errno 28\]|No space left on device|\[Errno 122\]|Disk quota exceeded|PytorchStreamWriter failed writing)"
        ),
        "The disk is full: free space, or move the folder (trainer.default_local_dir, TMPDIR, Ray's _temp_dir).",
        by_phase={
            Phase.SAVE_CHECKPOINT: "The disk filled up while a checkpoint was saved: trials should run with trainer.save_freq=-1; free space"
            " or move trainer.default_local_dir."
        },
        detail=1,
    ),
    Rule(
        "ray_disk_full",
        FailureClass.DISK_FULL,
        re.compile(r"ray\.exceptions\.OutOfDiskError: .*", re.DOTALL),
        "The disk of Ray's temporary folder is full: free space or set +ray_kwargs.ray_init._temp_dir.",
        detail=1,
    ),
    # -- Ray cluster ------------------------------------------------------------------------------------------------------
    Rule(
        "gpus_missing",
        FailureClass.RAY_RESOURCES,
        _raised(
            r"Total available (?:GPUs|NPUs|\w+) (?P<have>[\d.]+) is less than total desired (?:GPUs|NPUs|\w+) (?P<want>[\d.]+)"
        ),
        "Ray sees {have} GPUs, the config wants {want} (nnodes * n_gpus_per_node): the driver is not connected to the running cluster (set"
        " RAY_ADDRESS), a node is missing, or an earlier run still holds GPUs.",
        phase=Phase.RAY_INIT,
        retryable=True,
        detail=2,
    ),
    Rule(
        "placement",
        FailureClass.RAY_RESOURCES,
        re.compile(
            r".*(?:PlacementGroupSchedulingError|Placement group creation timed out|placement group .*? (?:infeasible|timed out)"
            r"|ActorUnschedulableError|TaskUnschedulableError|No available node types can fulfill resource request"
            r"|node .*? cannot be satisfied)",
            re.DOTALL,
        ),
        "Ray cannot place the workers: a node or GPUs are missing, or fewer than 3 CPUs per GPU are there for each bundle.",
        phase=Phase.RAY_INIT,
        retryable=True,
        detail=1,
    ),
    Rule(
        "no_cluster",
        FailureClass.RAY_RESOURCES,
        re.compile(
            r".*(?:Could not find any running Ray instance|Failed to connect to GCS|[Cc]an't find a node_ip_address\.json"
            r"|Unable to connect to GCS|The current node timed out during startup|Ran into a zombie|Session name .* does not match)",
            re.DOTALL,
        ),
        "There is no Ray cluster to reach at this address: start it, unset RAY_ADDRESS, or use +ray_kwargs.ray_init.address=local.",
        phase=Phase.RAY_INIT,
        retryable=True,
        detail=1,
    ),
    Rule(
        "node_died",
        FailureClass.RAY_ACTOR_DIED,
        re.compile(
            r".*(?:because its node has died|The node with node id: \w+ .*?marked dead|[Nn]ode(?:ID| ID)?:? ?\w* .{0,60}is dead"
            r"|ray\.exceptions\.NodeDiedError)",
            re.DOTALL,
        ),
        "A node left the Ray cluster: bring it back and run again. No setting of the run is at fault.",
        weight=Weight.SUSPECT,
        retryable=True,
        detail=2,
    ),
    Rule(
        "actor_died",
        FailureClass.RAY_ACTOR_DIED,
        re.compile(
            r"(?:ray\.exceptions\.)?(?:ActorDiedError|RayActorError|ActorUnavailableError|WorkerCrashedError)\b.*"
            r"|ray\.exceptions\.RayTaskError\((?:ActorDiedError|RayActorError|WorkerCrashedError)\).*"
            r"|.*A worker died or was killed while executing a task by an unexpected system error.*"
            r"|The actor is dead because its worker process has died.*",
            re.DOTALL,
        ),
        "The cause is not in this log. Check dmesg for the kernel's OOM killer, the worker's own log in /tmp/ray/session_latest/logs"
        "{worker}, and host memory during the run.",
        weight=Weight.ECHO,
        detail=1,
    ),
    Rule(
        "segfault",
        FailureClass.RAY_ACTOR_DIED,
        re.compile(
            r"(?:Fatal Python error: (?!.*Aborted)|\*\*\* SIG(?:SEGV|BUS|FPE|ILL|ABRT) received|!!!!!!! Segfault encountered).*",
            re.DOTALL,
        ),
        "A process crashed in native code: its stack stands after this line. Note the versions of torch, vLLM and the driver; a"
        " retry shows whether it is repeatable.",
        weight=Weight.SUSPECT,
        detail=1,
    ),
    # -- communication ----------------------------------------------------------------------------------------------------
    Rule(
        "nccl_watchdog",
        FailureClass.NCCL_TIMEOUT,
        re.compile(
            r".*Watchdog caught collective operation timeout: \w+\("
            r"(?:(?=.*?OpType=(?P<operation>\w+)))?(?:(?=.*?ran for (?P<waited>\d+) milliseconds))?",
            re.DOTALL,
        ),
        "A rank did not reach the collective{operation_name}: find the one that lags or died first (an OOM or error on one rank is the usual"
        " cause; py-spy its process, RAY_DEDUP_LOGS=0). Raising the timeout helps only a phase that is really that slow.",
        weight=Weight.SUSPECT,
        detail=3,
    ),
    Rule(
        "nccl_error",
        FailureClass.NCCL_TIMEOUT,
        re.compile(
            r"(?:[\w.]*(?:Error|Exception): )?.*?(?:NCCL operations have failed or timed out|NCCL communicator was aborted"
            r"|collective operation timeout|NCCL error in: |ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError"
            r"|Timed out waiting .{0,60}(?:store|rendezvous|recv)|(?:wait|get|set) timeout after \d+ ?ms|heartbeat monitor timed out"
            r"|Timed out initializing process group|DistStoreError|Socket Timeout|Connection closed by (?:remote )?peer)",
            re.DOTALL,
        ),
        "Communication between ranks failed: look for an earlier error on another rank, then for the network (NCCL_DEBUG=INFO,"
        " NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE).",
        weight=Weight.SUSPECT,
        detail=1,
    ),
    # -- stopped from outside ---------------------------------------------------------------------------------------------
    Rule(
        "time_limit",
        FailureClass.INTERRUPTED,
        re.compile(
            r".*(?:DUE TO TIME LIMIT|exceeded (?:its|the) (?:wall ?time|time limit)|TIMEOUT: job|walltime \d+ exceeded)",
            re.DOTALL,
        ),
        "The scheduler stopped the job at its time limit. That is no property of the settings: keep the trial as unfinished and run it again.",
        phase=Phase.UNKNOWN,
        weight=Weight.STOPPED,
        retryable=True,
        detail=3,
    ),
    Rule(
        "preempted",
        FailureClass.INTERRUPTED,
        re.compile(
            r".*(?:DUE TO PREEMPTION|DUE TO NODE FAILURE|\*\*\* (?:JOB|STEP) .* CANCELLED AT|spot instance .*terminat)",
            re.DOTALL,
        ),
        "The scheduler took the job away. That is no property of the settings: run it again.",
        phase=Phase.UNKNOWN,
        weight=Weight.STOPPED,
        retryable=True,
        detail=2,
    ),
    Rule(
        "signalled",
        FailureClass.INTERRUPTED,
        re.compile(
            r"(?:\*\*\* SIG(?:TERM|INT|HUP) received|KeyboardInterrupt\b|Terminated$|srun: (?:Force Terminated|forcing job termination)"
            r"|Received (?:signal|SIG)\w*:? ?(?:15|2|TERM|INT)|slurmstepd: error: .*CANCELLED|.*[Jj]ob .* was stopped by the user"
            r"|torch\.distributed\.elastic.*SignalException|.*got signal: (?:15|2)|.*\bsignal 15\b.*|raise SystemExit\(.*SIGTERM)",
            re.DOTALL,
        ),
        "The run was stopped from outside. That is no property of the settings: run it again.",
        phase=Phase.UNKNOWN,
        weight=Weight.STOPPED,
        retryable=True,
        detail=1,
    ),
)
"""Every known wording, in the order in which they are tried; the first that matches a line names it."""


PHASE_FRAMES: tuple[tuple[re.Pattern[str], Phase], ...] = tuple(
    (re.compile(pattern), phase)
    for pattern, phase in (
        (
            r"cumem_allocator|\bwake_up\b|_wake_up_|\bresume_memory_occupation\b|\brollout_mode\b|\bupdate_weights\b|resume\(tags",
            Phase.WAKE_UP,
        ),
        # Ray names a task after its worker, and `actor_rollout_ref` does the actor's log-probs as well as the reference's.
        (r"compute_ref_log_prob|(?<!actor_rollout)_ref_compute|ref_log_prob|\bRefPolicy\b|\bref_worker\b", Phase.REF),
        (r"critic_update_critic|_?update_critic\b|update_critic\(", Phase.UPDATE_CRITIC),
        (r"compute_values|critic_compute|_compute_values", Phase.VALUES),
        (r"compute_old_log_prob|compute_log_prob|entropy_from_logits", Phase.OLD_LOG_PROB),
        (r"update_actor|\bupdate_policy\b", Phase.UPDATE_ACTOR),
        (r"_?save_checkpoint\b", Phase.SAVE_CHECKPOINT),
        (
            r"_build_rollout|build_rollout|launch_server|run_server|init_standalone|init_hybrid|vLLMHttpServer\.__init__|\bLLM\(|"
            r"\bAsyncLLM\b|from_engine_args|from_vllm_config|initialize_cache|initialize_kv_cache|_initialize_kv_caches|"
            r"determine_available_memory|determine_num_available_blocks|profile_run|capture_model|warm_up_model|_dummy_run|init_device|"
            r"run_engine_core|_init_engine|EngineCore failed to start|create_engine_config|_capture_cudagraphs|SGLangHttpServer\.__init__|"
            r"init_server|_initialize_llm_servers",
            Phase.INIT_ROLLOUT,
        ),
        (
            r"generate_sequences|AgentLoop|agent_loop|_run_prompt|\bexecute_model\b|async_generate|run_busy_loop|_process_engine_step|"
            r"replay_buffer\.sample|\bstep_with_batch_queue\b",
            Phase.GEN,
        ),
        (r"init_model\b|_init_model|_build_model_optimizer|_build_fsdp|from_pretrained|init_workers", Phase.INIT_MODEL),
        (r"validate_config|hydra/_internal|_run_hydra|compose\(|omegaconf/", Phase.CONFIG),
        (
            r"ray\.init|_init_resource_pool|create_resource_pool|_check_resource_available|placement_group",
            Phase.RAY_INIT,
        ),
    )
)
"""Names in tracebacks and Ray task names that say in which phase an error was raised, tried in this order on each line."""
