#!/bin/bash
if [ "${SKIP:-0}" -eq 1 ]; then echo skip; exit 0; fi
trap 'echo bye' EXIT
command -v nothing_here >/dev/null 2>&1 || true
! false && OK=1
until [ "${k:-0}" -ge 3 ]; do k=$(( ${k:-0} + 1 )); [ $k -eq 2 ] && continue; S="$S$k"; done
python3 -m verl.trainer.main_ppo data.train_batch_size=8 data.ok=$OK data.k=$k data.s=$S
exit 0
