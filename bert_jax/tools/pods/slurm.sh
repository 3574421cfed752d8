#!/bin/bash
# The job of `bert-jax launch slurm`: runs a command on every task, again after a crash, and requeues itself after
# SIGTERM, on which the command has saved (exit code 143). Slurm sends that before the time limit and on preemption.
#
#   sbatch --signal=TERM@SECONDS … slurm.sh MAX_RESTARTS COMMAND…
set -uo pipefail
most=$1
shift
# From Slurm 22.05 on, srun does not take this from sbatch, and would give one processor to each task.
step=(--kill-on-bad-exit=0 --wait=120 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"})
seconds=10
for ((restart = 1; ; restart++)); do
  # A task that ends does not end the others at once: they may be saving.
  srun "${step[@]}" "$@"
  code=$?
  case $code in
    0 | 2 | 130) # finished, bad input, Ctrl-C
      echo "the run has ended: exit code $code"
      exit "$code"
      ;;
    143)
      echo "stopped by SIGTERM and saved; requeued"
      scontrol requeue "$SLURM_JOB_ID"
      exit "$code"
      ;;
  esac
  if ((restart > most)); then
    echo "exit code $code; not started again, after $most restarts"
    exit "$code"
  fi
  echo "exit code $code; restart $restart of at most $most in $seconds s"
  sleep "$seconds"
  ((seconds = seconds * 2 < 300 ? seconds * 2 : 300))
done
