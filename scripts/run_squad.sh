#!/bin/sh
# Fine-tunes a checkpoint on SQuAD 1.1 and 2.0; started again, it resumes where it stopped.
#
#   scripts/run_squad.sh CHECKPOINT SQUAD OUTPUT [--seeds=3 …]
#
# SQUAD holds train-v1.1.json, dev-v1.1.json and their v2.0; a version that is not there is left out. VERSIONS="v2" chooses.
# TRIVIAQA=DIR first fine-tunes on a TriviaQA in SQuAD form (train-v1.1.json, dev-v1.1.json) and continues from that, as the
# paper does. OUTPUT gets the table and a work directory per version, whose predictions/dev has predictions.json, nbest.json
# and null_odds.json.
set -eu
[ $# -ge 3 ] || { sed -n '2,9p' "$0"; exit 2; }
checkpoint=$1 squad=$2 output=$3
shift 3

if [ -n "${TRIVIAQA:-}" ]; then
  bert-jax finetune squad_v1 --init_from="$checkpoint" --data.dir="$TRIVIAQA" --workdir="$output/triviaqa/squad_v1" "$@"
  checkpoint=$output/triviaqa/squad_v1
fi
for version in ${VERSIONS:-v1 v2}; do
  [ "$version" = v1 ] && name=v1.1 || name=v2.0
  ls "$squad"/train*"$name".json >/dev/null 2>&1 || { echo "squad_$version: no train-$name.json in $squad, left out"; continue; }
  bert-jax finetune "squad_$version" --init_from="$checkpoint" --data.dir="$squad" --workdir="$output/squad_$version" "$@"
done
bert-jax results "$output" --output="$output"
