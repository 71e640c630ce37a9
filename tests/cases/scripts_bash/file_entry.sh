#!/bin/bash
cd work/../work
PYTHONPATH=.:$PYTHONPATH python3 verl/trainer/main_ppo.py data.train_batch_size=8 trainer.nnodes=1
