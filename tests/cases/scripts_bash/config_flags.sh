#!/bin/bash
HERE="$(cd "$(dirname "$0")" && pwd)"
python3 -m verl.trainer.main_ppo --config-path="$HERE/config" --config-name grpo -cd /x data.train_batch_size=8 hydra.run.dir=out/x ~trainer.foo ++data.q=1
