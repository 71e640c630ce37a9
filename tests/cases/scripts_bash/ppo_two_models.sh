#!/bin/bash
set -xeuo pipefail
ACTOR=${ACTOR:-org/Chat-7B}; CRITIC=${CRITIC:-$ACTOR}
LR_A=1e-6 LR_C=1e-5
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gae \
  actor_rollout_ref.model.path="$ACTOR" critic.model.path="$CRITIC" \
  actor_rollout_ref.actor.optim.lr=$LR_A critic.optim.lr=$LR_C \
  critic.optim.lr_warmup_steps_ratio=0.05 trainer.critic_warmup=0 "${@}"
