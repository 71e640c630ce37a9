#!/usr/bin/env bash
set -euo pipefail
ALGO=(algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False)
ROLL=(
  actor_rollout_ref.rollout.name=vllm   # engine
  actor_rollout_ref.rollout.n=${N:-5}
  "actor_rollout_ref.rollout.stop=['a b','c']"
)
ALL=("${ALGO[@]}" "${ROLL[@]}")
echo "have ${#ALL[@]} settings, first ${ALL[0]}"
python3 -m verl.trainer.main_ppo "${ALL[@]}" data.train_batch_size=$(( ${#ALL[@]} * 16 )) "${ALL[@]:1:2}" "$@"
