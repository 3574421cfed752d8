#!/bin/sh
# Fine-tunes a cased checkpoint on named entities in CoNLL form; started again, it resumes where it stopped.
#
#   scripts/run_ner.sh CHECKPOINT CONLL OUTPUT [--seeds=3 --crf …]
#
# CONLL holds train.txt, dev.txt and test.txt (or eng.train, eng.testa, eng.testb). FEATURES=1 also runs the feature-based
# rows of the paper's table 7: a BiLSTM on frozen layers, each in a work directory of its own, at FEATURE_RATE (1e-3), because
# the rates and grids of fine-tuning are far too low for a fresh BiLSTM.
set -eu
[ $# -ge 3 ] || { sed -n '2,8p' "$0"; exit 2; }
checkpoint=$1 conll=$2 output=$3
shift 3

bert-jax finetune ner --init_from="$checkpoint" --data.dir="$conll" --workdir="$output/ner" "$@"
frozen() { # LAYERS OPTION…: the options of the grid are for the fine-tuning alone
  name=$1
  shift
  dropped=
  for word; do
    shift
    case $word in
      --grid*=*) dropped= ;;
      --grid*) dropped=value ;; # which is the next word, or is not given
      --*) dropped= && set -- "$@" "$word" ;;
      *) if [ -n "$dropped" ]; then dropped=; else set -- "$@" "$word"; fi ;;
    esac
  done
  bert-jax finetune ner --init_from="$checkpoint" --data.dir="$conll" --workdir="$output/$name/ner" "$@" \
    --features="$name" --learning_rate="${FEATURE_RATE:-1e-3}"
}

layers=
[ -z "${FEATURES:-}" ] || layers="embeddings second_to_last last weighted_last_four concat_last_four weighted_all"
for name in $layers; do
  frozen "$name" "$@"
done
set -- "$output"
for name in $layers; do
  set -- "$@" "$output/$name"
done
bert-jax results "$@" --output="$output"
