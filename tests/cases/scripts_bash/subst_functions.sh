#!/bin/bash
mult() { echo $(( $1 * $2 )); }
pick() { if [ "$1" = big ]; then printf '%s' 8; else printf '%d' 2; fi; }
B=$(mult 16 4)
T=`pick big`
python3 -m verl.trainer.main_ppo data.train_batch_size=$B actor_rollout_ref.rollout.tensor_model_parallel_size=$T data.s="$(seq 1 3)" data.p=$(printf "%03d" 7)
