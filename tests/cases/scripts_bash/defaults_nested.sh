#!/bin/bash
set -u
X=${X:-${Y:-${Z:-"a b"}}}
: "${W:=7}"
V=${X:+set}
python3 -m verl.trainer.main_ppo data.x="$X" data.w=$W data.v=$V data.q=${UNDEF-none} data.train_batch_size=${W}0 data.r="${X:-}${NOPE:-}"
