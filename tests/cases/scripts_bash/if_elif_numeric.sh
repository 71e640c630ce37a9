#!/bin/bash
GPUS=16
if [ $GPUS -ge 32 ]; then NN=4; elif [[ $GPUS -gt 8 && -n "$GPUS" ]]; then NN=2; else NN=1; fi
if ((GPUS % 8 == 0)); then PER=8; else PER=$GPUS; fi
[ -z "$FOO" ] && EXTRA="trainer.val_before_train=False"
[[ $GPUS =~ ^1([0-9])$ ]] && SEED=${BASH_REMATCH[1]}
python3 -m verl.trainer.main_ppo data.train_batch_size=128 trainer.n_gpus_per_node=$PER trainer.nnodes=$NN $EXTRA data.seed=$SEED
