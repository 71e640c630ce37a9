#!/bin/bash
a=$HOME/data/a/train.parquet
b=$HOME/data/b/train.parquet
train_files="['$a', '$b']"
test_files="['${a/train/test}', '${b%train.parquet}test.parquet']"
python3 -m verl.trainer.main_ppo data.train_files="$train_files" data.val_files="$test_files" data.train_batch_size=256 trainer.nnodes=1
