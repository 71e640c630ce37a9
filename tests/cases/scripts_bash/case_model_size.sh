#!/bin/bash
SIZE=${SIZE:-7b}
case "${SIZE,,}" in
  0.5b|1.5b) TP=1; MB=16 ;;
  7b) TP=2; MB=8 ;;
  *) TP=8; MB=1 ;;
esac
case $TP in [1-2]) OFF=False;; *) OFF=True;; esac
python3 -m verl.trainer.main_ppo data.train_batch_size=$((MB*32)) actor_rollout_ref.rollout.tensor_model_parallel_size=$TP actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$MB actor_rollout_ref.actor.fsdp_config.param_offload=$OFF
