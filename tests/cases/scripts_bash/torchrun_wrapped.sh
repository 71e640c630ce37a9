#!/bin/bash
torchrun --nnodes 1 --nproc-per-node=1 --no-python python3 -m verl.trainer.main_ppo data.train_batch_size=8 trainer.nnodes=1
