#!/bin/bash
set -- data.a=1 "data.b=x y"
shift
A=("$@" data.c=3)
A[5]=data.d=4
unset 'A[1]'
python3 -m verl.trainer.main_ppo data.train_batch_size=8 "${A[@]}" data.n=${#A[@]} data.last=${A[-1]#*=} data.idx="${!A[*]}"
