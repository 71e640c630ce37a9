#!/bin/bash
set -a
A=1; B="two words"
set +a
C=3
export -n A
declare -x D=4
readonly E=5
FOO=bar BAZ="$C" python3 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.nnodes=$E data.d=$D
