#!/bin/bash
# Train the runs on one line of a list, in one task of a Slurm job array:
#
#   bash slurm_job.sh LIST COMMAND...
#
# Line SLURM_ARRAY_TASK_ID + 1 of LIST has job files, separated by tabs; COMMAND trains the job files that it is given.
# The job is queued again, and the runs resume from their last epoch, when
#   - Slurm preempts it or its node fails (sbatch --requeue);
#   - its time limit is near (USR1);
#   - the training process was killed, as by the kernel for want of memory, or a GPU's error; at most three times.
set -u
list=$1
shift
IFS=$'\t' read -r -a jobs < <(sed -n "$((SLURM_ARRAY_TASK_ID + 1))p" "$list")

stopped=
# Slurm's controller may be busy for a while.
requeue() {
  local pause
  for pause in 1 5 15 0; do
    scontrol requeue "$SLURM_JOB_ID" && return
    sleep "$pause"
  done
}

trap 'stopped=1; requeue' USR1
trap 'stopped=1; kill -TERM "$training" 2>/dev/null' TERM

"$@" "${jobs[@]}" &
training=$!
# A signal ends `wait` before the process has ended.
wait "$training"
code=$?
while kill -0 "$training" 2>/dev/null; do
  wait "$training"
  code=$?
done
if [ "$code" -gt 128 ] && [ -z "$stopped" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
  requeue
fi
exit "$code"
