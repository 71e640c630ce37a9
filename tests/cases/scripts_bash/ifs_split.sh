#!/bin/bash
OLD=$IFS
IFS=, PARTS=(x,y z)
IFS=,
set -- a,b
L="one,two,three"
for w in $L; do S="$S+data.$w=1 "; done
J="${PARTS[*]}"
IFS=$OLD
python3 -m verl.trainer.main_ppo data.train_batch_size=8 $S data.j="$J"
