"""The keys of verl's configuration that autotune reads or writes, by the names of release 0.9.1."""

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REF = "actor_rollout_ref.ref"
MODEL = "actor_rollout_ref.model"

DYNAMIC = f"{ACTOR}.use_dynamic_bsz"
ACTOR_MICRO_BATCH = f"{ACTOR}.ppo_micro_batch_size_per_gpu"
ACTOR_TOKENS = f"{ACTOR}.ppo_max_token_len_per_gpu"
ACTOR_MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"
ACTOR_STRATEGY = f"{ACTOR}.strategy"

LOG_PROB_DYNAMIC = f"{ROLLOUT}.log_prob_use_dynamic_bsz"
LOG_PROB_MICRO_BATCH = f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu"
LOG_PROB_TOKENS = f"{ROLLOUT}.log_prob_max_token_len_per_gpu"

REF_DYNAMIC = f"{REF}.log_prob_use_dynamic_bsz"
REF_MICRO_BATCH = f"{REF}.log_prob_micro_batch_size_per_gpu"
REF_TOKENS = f"{REF}.log_prob_max_token_len_per_gpu"

CRITIC_TOKENS = "critic.ppo_infer_max_token_len_per_gpu"
CRITIC_TOKENS_V0 = "critic.ppo_max_token_len_per_gpu"

GPU_MEMORY = f"{ROLLOUT}.gpu_memory_utilization"
MAX_NUM_SEQS = f"{ROLLOUT}.max_num_seqs"
MAX_BATCHED_TOKENS = f"{ROLLOUT}.max_num_batched_tokens"
MAX_MODEL_LEN = f"{ROLLOUT}.max_model_len"
CHUNKED_PREFILL = f"{ROLLOUT}.enable_chunked_prefill"
TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"

TRAIN_BATCH = "data.train_batch_size"
MAX_PROMPT = "data.max_prompt_length"
MAX_RESPONSE = "data.max_response_length"
SAMPLES = f"{ROLLOUT}.n"

USE_V1 = "trainer.use_v1"
V1_MODE = "trainer.v1.trainer_mode"
SAMPLER_PATH = "trainer.v1.sampler.custom_sampler.path"
SAMPLER_NAME = "trainer.v1.sampler.custom_sampler.name"
FILTER_GROUPS = "algorithm.filter_groups.enable"

FAST_POLL = "hook.fast_poll"
"""Not a key of verl: whether the run uses the fast generation poll of `autotune_hooks.py`."""
