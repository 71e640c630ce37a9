#!/bin/bash
launch() {
  local tp=$1 util=${2:-0.5}
  shift 2
  python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.rollout.tensor_model_parallel_size=$tp actor_rollout_ref.rollout.gpu_memory_utilization=$util "$@"
}
launch 4 0.7 trainer.nnodes=1 'trainer.experiment_name=x y'
