#!/bin/bash
#SBATCH --job-name=recur-tune-books
#SBATCH --output=job-%j.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32768M
#SBATCH --gres=gpu:1
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --no-kill
#SBATCH --requeue

exec python -m recur_tune.sites.slurm.job /shared/results/books host
