#!/bin/bash
CMD="python3 -m verl.trainer.main_ppo data.train_batch_size=8"
CMD="$CMD trainer.nnodes=1 'trainer.experiment_name=a b'"
eval "$CMD"
