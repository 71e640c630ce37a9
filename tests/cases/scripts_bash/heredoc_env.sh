#!/bin/bash
cat > env.yaml <<EOF
env_vars:
  A: "$HOME"
EOF
read -r P R <<< "2048 4096"
python3 -m verl.trainer.main_ppo data.max_prompt_length=$P data.max_response_length=$R data.train_batch_size=8 actor_rollout_ref.rollout.max_model_len=$((P+R))
