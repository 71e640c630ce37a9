#!/bin/bash
python3 -m verl.trainer.main_ppo data.train_batch_size=8 data.{a,b}=1 data.f=x{1..3}y data.g="{a,b}" data.h={single} data.i={a,{b,c}}z +data.k={x:1}
