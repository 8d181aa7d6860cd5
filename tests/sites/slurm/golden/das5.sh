#!/bin/bash
#SBATCH --job-name=recur-tune-books
#SBATCH --output=job-%j.log
#SBATCH --open-mode=append
#SBATCH --partition=defq
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:1
#SBATCH --time=00:15:00
#SBATCH --constraint=TitanX
#SBATCH --signal=B:USR1@120
#SBATCH --no-kill
#SBATCH --requeue

trap 'echo "recur-tune: the set-up failed at: $BASH_COMMAND" >&2' ERR
set -e
. /etc/bashrc
module load cuda12.3/toolkit
set +e
trap - ERR
exec python -m recur_tune.sites.slurm.job /shared/results/books host
