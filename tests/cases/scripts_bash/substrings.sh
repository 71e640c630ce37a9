#!/bin/bash
M=/models/org/Base-7B-Instruct/
N=${M%/}; N=${N##*/}
python3 -m verl.trainer.main_ppo data.train_batch_size=8 trainer.experiment_name=${N} trainer.project_name=${N:0:4}_${N: -8:3} data.len=${#N} data.low=${N,,} data.up=${N^^} data.rep=${N//-/_} data.one=${N/-/+} data.pre=${N#*-} data.dir=$(dirname ${M%/}) data.base=$(basename "$M")
