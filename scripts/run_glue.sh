#!/bin/sh
# Fine-tunes a checkpoint on the tasks of GLUE, one after the other; started again, it goes on where it stopped.
#
#   scripts/run_glue.sh CHECKPOINT GLUE OUTPUT [--seeds=3 --grid …]
#
# GLUE holds the benchmark's directories (CoLA, SST-2, …); those that are not there are left out. OUTPUT gets a work directory
# a task, submission/ with the files that the benchmark's server takes, and results_table.md and .json. Options after the
# three words go to every task. TASKS="cola mrpc" chooses some; FROM_MNLI=1 starts MRPC, STS-B and RTE from the MNLI model.
set -eu
[ $# -ge 3 ] || { sed -n '2,9p' "$0"; exit 2; }
checkpoint=$1 glue=$2 output=$3
shift 3

directory() {
  case $1 in
    cola) echo CoLA ;; sst2) echo SST-2 ;; mrpc) echo MRPC ;; stsb) echo STS-B ;; qqp) echo QQP ;;
    mnli) echo MNLI ;; qnli) echo QNLI ;; rte) echo RTE ;; wnli) echo WNLI ;; ax) echo AX ;;
  esac
}

for task in ${TASKS:-mnli ax qqp qnli sst2 cola stsb mrpc rte wnli}; do
  data=$glue/$(directory "$task") from=$checkpoint
  [ "$task" != ax ] || [ -d "$data" ] || data=$glue/diagnostic
  [ -d "$data" ] || { echo "$task: no $data, left out"; continue; }
  case $task in
    ax) from=$output/mnli ;;
    mrpc | stsb | rte) [ -z "${FROM_MNLI:-}" ] || from=$output/mnli ;;
  esac
  bert-jax finetune "$task" --init_from="$from" --data.dir="$data" --workdir="$output/$task" "$@"
done

mkdir -p "$output/submission"
for file in "$output"/*/predictions/test*/*.tsv; do
  [ ! -e "$file" ] || cp "$file" "$output/submission/"
done
bert-jax results "$output" --output="$output"
