"""Run by test_real_live_engine.py in an environment with the payload: a real vLLM engine on the CPU under moving limits."""

import json
import sys

from vllm import LLM, SamplingParams


def main(model, result):
    llm = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=16,
        max_num_batched_tokens=2048,
        kv_cache_memory_bytes=64 << 20,
        block_size=32,
        enable_prefix_caching=True,
        scheduler_cls="autotune.inside.scheduler.live_scheduler",
    )
    core = llm.llm_engine.engine_core
    prompts = [{"prompt_token_ids": [5 + (7 * row + place) % 900 for place in range(40)]} for row in range(10)]
    greedy = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    found = {"start": core.call_utility("autotune_live", None), "runs": []}
    for limits in ({}, {"max_num_seqs": 3}, {"max_num_batched_tokens": 48}, {"kv_blocks": 14}, {}):
        core.call_utility("autotune_live", limits)
        outputs = llm.generate(prompts, greedy, use_tqdm=False)
        reset = llm.llm_engine.reset_prefix_cache()
        after = core.call_utility("autotune_live", None)
        found["runs"].append(
            {
                "limits": limits,
                "tokens": [list(output.outputs[0].token_ids) for output in outputs],
                "cached": [output.num_cached_tokens for output in outputs],
                "reset": reset,
                "after": after,
            }
        )
    try:
        core.call_utility("autotune_live", {"kv_blocks": found["start"]["longest"] - 1})
    except Exception as error:  # noqa: BLE001  # vLLM raises nothing narrower for a call that failed in the engine
        found["refused"] = str(error)
    with open(result, "w", encoding="utf-8") as sink:
        json.dump(found, sink)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
