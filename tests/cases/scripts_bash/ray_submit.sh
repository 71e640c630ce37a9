#!/usr/bin/env bash
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"working_dir": "./"}' -- python3 -m verl.trainer.main_ppo data.train_batch_size=64 'trainer.logger=["console"]'
