#!/bin/bash
declare -A BS=([small]=32 [large]=128)
WHICH=large
NAME=BS_LARGE; BS_LARGE=999
python3 -m verl.trainer.main_ppo data.train_batch_size=${BS[$WHICH]} data.i=${!NAME} data.n=${#BS[@]}
