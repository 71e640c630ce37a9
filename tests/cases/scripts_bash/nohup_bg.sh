#!/bin/bash
mkdir -p logs
nohup timeout 100 python3 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.nnodes=1 > logs/a.log 2>&1 &
wait
