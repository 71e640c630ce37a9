#!/bin/bash
set -- --tp 4 --model "org/A B" trainer.nnodes=1
while [[ $# -gt 0 ]]; do
  case $1 in
    --tp) TP=$2; shift 2 ;;
    --model) M=$2; shift 2 ;;
    *) REST+=("$1"); shift ;;
  esac
done
python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.rollout.tensor_model_parallel_size=$TP actor_rollout_ref.model.path="$M" "${REST[@]}"
