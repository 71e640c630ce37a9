#!/bin/bash
v='single $x'
w="double \$x \"q\" \\ back"
u=$'tab\tnew'
python3 -m verl.trainer.main_ppo data.train_batch_size=8 data.v="$v" data.w="$w" data.u="$u" data.e="" data.m=a"b"'c'\d data.n='it'"'"'s' "data.o=[1, 2]" data.p=\[1\] data.q="a
b"
