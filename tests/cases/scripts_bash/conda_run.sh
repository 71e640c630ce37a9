#!/bin/bash
conda run --no-capture-output -n rl env NCCL_DEBUG=WARN OMP_NUM_THREADS=4 python -m verl.trainer.main_ppo data.train_batch_size=64 trainer.nnodes=1
