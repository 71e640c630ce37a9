"""Warnings about a command: what bash or verl will do with it that its author hardly meant."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.launch.expand import unset_names
from autotune.launch.launch import Finding, Override

_ROLLOUT = "actor_rollout_ref.rollout."
_TOTALS = {
    "actor_rollout_ref.actor.ppo_micro_batch_size": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size": "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "critic.forward_micro_batch_size": "critic.forward_micro_batch_size_per_gpu",
    "reward_model.micro_batch_size": "reward_model.micro_batch_size_per_gpu",
}
_DEPRECATED = {"data.val_batch_size": "verl validates the whole set in one go and ignores it"}


def findings(overrides: Sequence[Override], kind: str) -> list[Finding]:
    """Everything to say about the overrides of a command."""
    last = {o.key: o for o in overrides if o.op != "delete"}
    out = [
        *_duplicates(overrides),
        *_empty(overrides),
        *_braces(overrides),
        *_unparsable(overrides),
        *_micro_batches(last),
        *_values(last),
    ]
    if kind == "async":
        out.append(
            Finding(
                "ASYNC_TRAINER",
                None,
                "an asynchronous trainer: steps overlap, so step times do not add up to phases; autotune does not tune it",
            )
        )
    return out


def _duplicates(overrides: Sequence[Override]) -> list[Finding]:
    seen: dict[str, list[Override]] = {}
    for o in overrides:
        if not (o.braces or o.passthrough):
            seen.setdefault(o.key, []).append(o)
    twice = [(key, group) for key, group in seen.items() if len(group) > 1]
    if not twice:
        return []
    said = "; ".join(
        f"{key} is given {len(group)} times (lines {', '.join(str(o.line) for o in group)}), the last, {group[-1].value}, wins"
        for key, group in twice
    )
    return [Finding("DUPLICATE_KEY", None, said)]


def _empty(overrides: Sequence[Override]) -> list[Finding]:
    out = []
    for o in overrides:
        if o.value != "" or o.op == "delete":
            continue
        names = o.unset or (tuple(unset_names(o.word)) if o.word is not None else ())
        if names:
            variables = " and ".join(dict.fromkeys(names))
            said = f"{variables} is unset or empty: {o.key} becomes the empty string, not its default; give it in the environment or with --env {names[0]}=…"
            out.append(Finding("EMPTY_VALUE", o.line, said))
    return out


def _braces(overrides: Sequence[Override]) -> list[Finding]:
    out: dict[tuple[int | None, str], Finding] = {}
    for o in overrides:
        if o.braces:
            said = f"unquoted {{…}}: bash makes several arguments of it, so Hydra gets {o.key} more than once; quote the whole argument"
            out.setdefault((o.line, o.key), Finding("BRACE_EXPANSION", o.line, said))
    return list(out.values())


def _unparsable(overrides: Sequence[Override]) -> list[Finding]:
    out = []
    for o in overrides:
        if o.error is None:
            continue
        if o.value and not o.value.isascii():
            said = f"{o.key}: Hydra's grammar takes characters outside ASCII only inside quotes of its own, such as {o.key}=\"'…'\" ({o.error})"
            out.append(Finding("HYDRA_NON_ASCII_UNQUOTED", o.line, said))
        else:
            out.append(Finding("HYDRA_PARSE", o.line, f"Hydra refuses {o.argument[:120]!r}: {o.error}"))
    return out


def _micro_batches(last: dict[str, Override]) -> list[Finding]:
    out = []
    deprecated: dict[str, list[Override]] = {}
    for old, new in _TOTALS.items():
        if old not in last or last[old].typed is None:
            continue
        if new in last and last[new].typed is not None:
            said = f"{old} and {new} are both set; verl raises ValueError. Keep the second"
            out.append(Finding("BOTH_MICRO_BATCH_KEYS", last[old].line, said))
        else:
            deprecated.setdefault(old.rsplit(".", 1)[-1], []).append(last[old])
    for name, group in deprecated.items():
        keys = ", ".join(o.key for o in group)
        out.append(Finding("DEPRECATED_KEY", group[0].line, f"{keys}: deprecated, use {name}_per_gpu"))
    for key, why in _DEPRECATED.items():
        if key in last:
            out.append(Finding("DEPRECATED_KEY", last[key].line, f"{key} is deprecated: {why}"))
    return out


def _values(last: dict[str, Override]) -> list[Finding]:
    out = []

    def number(key: str) -> int | None:
        typed = last[key].typed if key in last else None
        return typed if isinstance(typed, int) and not isinstance(typed, bool) else None

    mode = last.get(_ROLLOUT + "mode")
    if mode is not None and mode.typed == "sync":
        out.append(
            Finding(
                "REMOVED_VALUE", mode.line, f"{mode.key}=sync was removed; current verl raises ValueError. Use async"
            )
        )
    chunked = last.get(_ROLLOUT + "enable_chunked_prefill")
    tokens, length = number(_ROLLOUT + "max_num_batched_tokens"), number(_ROLLOUT + "max_model_len")
    if chunked is not None and chunked.typed is False and tokens is not None and length is not None and tokens < length:
        said = f"chunked prefill is off and max_num_batched_tokens {tokens} < max_model_len {length}: vLLM refuses to start"
        out.append(Finding("BATCHED_TOKENS_LT_MODEL_LEN", last[_ROLLOUT + "max_num_batched_tokens"].line, said))
    tensor, gpus, nodes = (
        number(_ROLLOUT + "tensor_model_parallel_size"),
        number("trainer.n_gpus_per_node"),
        number("trainer.nnodes"),
    )
    if tensor and gpus is not None and (gpus * (nodes or 1)) % tensor:
        said = f"{gpus * (nodes or 1)} GPUs are not divisible by the rollout's tensor_model_parallel_size {tensor}"
        out.append(Finding("TP_NOT_DIVISIBLE", last[_ROLLOUT + "tensor_model_parallel_size"].line, said))
    resume = last.get("trainer.resume_mode")
    if resume is not None and resume.typed == "auto":
        said = "trainer.resume_mode=auto resumes from whatever checkpoint trainer.default_local_dir holds; trials use resume_mode=disable"
        out.append(Finding("RESUME_AUTO", None, said))
    if last.get("trainer.v1.trainer_mode") is not None and "async" in str(last["trainer.v1.trainer_mode"].typed):
        out.append(
            Finding(
                "ASYNC_TRAINER",
                last["trainer.v1.trainer_mode"].line,
                "an asynchronous trainer mode: autotune does not tune it",
            )
        )
    return out
