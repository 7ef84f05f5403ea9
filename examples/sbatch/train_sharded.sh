#!/bin/sh
# Train on two machines. In the folder of train_sharded.py, which all machines must see:
#     sbatch sbatch/train_sharded.sh
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 2
##SBATCH --gpus-per-node 2   # as many as tasks; take away one # if your cluster has GPUs
#SBATCH --cpus-per-task 2    # the threads of a rank, and its --workers
#SBATCH --time 04:00:00
#SBATCH --signal TERM@120    # 2 minutes before the end, the ranks save. With B: they would hear nothing
#SBATCH --requeue            # if a machine is lost, the job runs again from its checkpoint,
#SBATCH --open-mode append   # and adds to its logs
#SBATCH --output job-%j.txt

# The ranks meet on the first machine, at a port that no other job has.
export MASTER_ADDR=$(scontrol show hostnames | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# srun does not take over --cpus-per-task from above.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK

# Each rank has a log of its own. When one has ended, Slurm gives the others a minute to end.
srun --kill-on-bad-exit=0 --wait=60 --output job-%j-rank-%t.txt \
    python -u train_sharded.py --tensor 2 --checkpoint run "$@"
status=$?

# Ranks that have saved because of a signal end with status 75: put the job back into the queue.
[ $status = 75 ] && exec scontrol requeue "$SLURM_JOB_ID"
exit $status
