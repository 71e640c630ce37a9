#!/bin/bash
a=010 b=0x10 c=3
let d=c**2
((c++)); (( d += 2, e = c > 3 ? 7 : 9 ))
python3 -m verl.trainer.main_ppo data.train_batch_size=$((a+b)) data.c=$c data.d=$d data.e=$e data.f=$((-7/2)) data.g=$((-7%3)) data.h=$((1<<4|1)) data.i=$(( (c>2&&d) || 0 )) data.j=$((2#101+16#ff)) data.k=$((!0)) data.l=$((~5)) data.m=$(( c == 4 ? a : b ))
