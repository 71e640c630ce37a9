#!/bin/bash
OPTS=""
for kv in actor.use_dynamic_bsz=True rollout.n=8 ref.log_prob_use_dynamic_bsz=True; do
  OPTS="$OPTS actor_rollout_ref.$kv"
done
LIST=""
for i in {1..4}; do LIST+="${LIST:+,}$((i * 8))"; done
for ((i=0;i<2;i++)); do OPTS+=" +data.extra.k$i=$i"; done
python3 -m verl.trainer.main_ppo data.train_batch_size=64 $OPTS +actor_rollout_ref.rollout.sizes=[$LIST]
