#!/bin/sh
# Train on two machines, one rank for each GPU: sbatch train_ddp.sh
# train_ddp.py lies in this folder, and the folder on a disk that all machines see.
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 2
##SBATCH --gpus-per-node 2      (with GPUs, one for each task: take away one #)
#SBATCH --cpus-per-task 2       # for the threads of a rank and for its --workers
#SBATCH --time 04:00:00
#SBATCH --signal TERM@120       # 2 minutes before the end the ranks save; with B: only this script would hear it
#SBATCH --requeue               # after the loss of a machine the job runs again
#SBATCH --open-mode append      # and adds to its output
#SBATCH --output job-%j.txt

# The ranks meet at the first machine, at a port of this job's own.
export MASTER_ADDR=$(scontrol show hostnames | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# srun does not take over --cpus-per-task by itself.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK

# A file for each rank; and where one rank fails, the others end, too.
srun --kill-on-bad-exit=1 --output job-%j-rank-%t.txt \
    python -u train_ddp.py --checkpoint checkpoint.pt "$@"
status=$?

# Ranks that were stopped end with status 75, and the job continues in the queue.
[ $status = 75 ] && exec scontrol requeue "$SLURM_JOB_ID"
exit $status
