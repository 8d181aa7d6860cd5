#!/bin/bash
#SBATCH --job-name=recur-tune-books
#SBATCH --output=job-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16384M
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@180
#SBATCH --no-kill
#SBATCH --requeue

export OMP_NUM_THREADS=1
exec python -m recur_tune.sites.slurm.job /shared/results/books host
