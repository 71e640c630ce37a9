#!/bin/bash
#SBATCH --nodes=2
NN=${SLURM_NNODES:-2}
srun --overlap --nodes=1 --ntasks=1 python3 -u -m verl.trainer.main_ppo data.train_batch_size=512 trainer.nnodes=$NN 2>&1 | tee srun.log
