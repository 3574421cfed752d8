#!/bin/sh
# Fine-tunes a checkpoint on SWAG (train.csv, val.csv); started again, it resumes where it stopped.
#
#   scripts/run_swag.sh CHECKPOINT SWAG OUTPUT [--seeds=3 …]
set -eu
[ $# -ge 3 ] || { sed -n '2,4p' "$0"; exit 2; }
checkpoint=$1 swag=$2 output=$3
shift 3

bert-jax finetune swag --init_from="$checkpoint" --data.dir="$swag" --workdir="$output/swag" "$@"
bert-jax results "$output" --output="$output"
