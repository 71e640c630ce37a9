#!/bin/bash
# python3 -m verl.trainer.main_ppo data.train_batch_size=1
X=a#b   # comment
python3 -m verl.trainer.main_ppo data.x=$X data.y=c#d \
   data.train_batch_size=8 # the end
# data.z=1
echo done
