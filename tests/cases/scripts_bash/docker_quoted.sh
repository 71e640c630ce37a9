#!/bin/bash
IMG=verl:latest
docker run --rm --gpus all -e A=1 -v "$PWD":/w $IMG bash -c "python3 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.nnodes=1 trainer.experiment_name='in docker'"
