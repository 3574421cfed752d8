#!/bin/sh
# Fine-tunes a checkpoint on the tasks of GLUE, one after the other; started again, it resumes where it stopped.
#
#   scripts/run_glue.sh CHECKPOINT GLUE OUTPUT [--seeds=3 --grid …]
#
# GLUE holds the benchmark's directories (CoLA, SST-2, …); those that are not there are left out. OUTPUT gets a work directory
# per task, submission/ with the files that the benchmark's server takes, and results_table.md and .json. Options after the
# three words go to every task. TASKS="cola mrpc" chooses some; FROM_MNLI=1 starts MRPC, STS-B and RTE from the MNLI model,
# which AX tests: OUTPUT/mnli, made here or earlier.
set -eu
[ $# -ge 3 ] || { sed -n '2,10p' "$0"; exit 2; }
checkpoint=$1 glue=$2 output=$3
shift 3
tasks=${TASKS:-mnli ax qqp qnli sst2 cola stsb mrpc rte wnli}

has_mnli_model() { [ -d "$output/mnli/checkpoints" ]; }

directory() {
  case $1 in
    cola) echo CoLA ;; sst2) echo SST-2 ;; mrpc) echo MRPC ;; stsb) echo STS-B ;; qqp) echo QQP ;;
    mnli) echo MNLI ;; qnli) echo QNLI ;; rte) echo RTE ;; wnli) echo WNLI ;; ax) echo AX ;;
  esac
}

answer_ax() { # OPTION…: nothing is trained, so of the options only those of the computation are for it
  for word; do
    shift
    case $word in --compute.* | --mesh.* | --eval_batch_size=*) set -- "$@" "$word" ;; esac
  done
  bert-jax finetune ax --init_from="$output/mnli" --data.dir="$data" --workdir="$output/ax" "$@"
}

if [ -n "${FROM_MNLI:-}" ] && ! has_mnli_model; then
  for task in $tasks; do
    case $task in
      mnli) [ ! -d "$glue/MNLI" ] || break ;; # those behind it find its model
      mrpc | stsb | rte)
        echo "FROM_MNLI=1: $task starts from the model in $output/mnli, which has none;" \
          "put $glue/MNLI there and mnli before $task in TASKS, or leave FROM_MNLI out" >&2
        exit 2 ;;
    esac
  done
fi

for task in $tasks; do
  data=$glue/$(directory "$task") from=$checkpoint
  [ "$task" != ax ] || [ -d "$data" ] || data=$glue/diagnostic
  [ -d "$data" ] || { echo "$task: no $data, left out"; continue; }
  case $task in
    ax)
      has_mnli_model || { echo "ax: no model of mnli in $output/mnli, left out"; continue; }
      answer_ax "$@"
      continue ;;
    mrpc | stsb | rte) [ -z "${FROM_MNLI:-}" ] || from=$output/mnli ;;
  esac
  bert-jax finetune "$task" --init_from="$from" --data.dir="$data" --workdir="$output/$task" "$@"
done

mkdir -p "$output/submission"
for file in "$output"/*/predictions/test*/*.tsv; do
  [ ! -e "$file" ] || cp "$file" "$output/submission/"
done
bert-jax results "$output" --output="$output"
