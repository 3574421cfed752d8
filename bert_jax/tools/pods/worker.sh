#!/bin/bash
# One worker of a TPU slice: installs bert_jax, and runs a command of it that outlives the connection.
# `bert-jax launch tpu` copies this file to every worker and calls it there.
#
#   worker.sh install          installs the wheel and the requirements (with hashes) that lie beside this file
#   worker.sh start WORD…      starts bert-jax with these words in the background, unless it is running
#   worker.sh follow LINE      prints the log from this line on, each behind its number, until the run ends
#   worker.sh state            prints whether the run is absent, running, ended (and its exit code) or lost
#   worker.sh last N           prints the last N lines of the log
#   worker.sh stop             ends the run: SIGTERM, and SIGKILL after a minute
set -euo pipefail
cd "$(dirname "$0")"

# The lock is held by the run and all its processes, so it tells of the run even after a reboot.
running() { [ -e lock ] && ! flock --shared --nonblock lock true; }

install() {
  if running; then
    echo "a run is active, nothing is installed"
    return
  fi
  if [ -e installed ] && sha256sum --check --status installed && [ "$(wc -l < installed)" = "$(sums | wc -l)" ]; then
    echo "installed already"
    return
  fi
  rm -rf installed venv
  # The system's Python is older than bert_jax needs; uv brings one.
  python3 -m pip install --quiet --user uv==0.13.9
  PATH=$HOME/.local/bin:$PATH
  uv venv --quiet --python 3.11 venv
  uv pip install --quiet --python venv/bin/python --require-hashes --requirements requirements.txt
  uv pip install --quiet --python venv/bin/python --no-deps ./*.whl
  sums > installed.partial
  mv installed.partial installed
  echo "installed"
}

sums() { sha256sum requirements.txt ./*.whl; }

start() {
  exec 9>> lock
  if ! flock --nonblock 9; then
    printf '%s\n' "$@" | cmp --silent - words && echo "running already" && return
    echo "this worker runs something else: bert-jax $(tr '\n' ' ' < words)" >&2
    exit 3
  fi
  printf '%s\n' "$@" > words
  rm -f code
  echo "== $(date --utc '+%F %T') bert-jax $*" >> log
  nohup setsid ./worker.sh supervise "$@" >> log 2>&1 < /dev/null &
  echo $! > pid
  echo "started"
}

supervise() { # in the background, with the lock
  local code=0
  trap : TERM # this shell waits for the run, which saves first
  venv/bin/bert-jax "$@" || code=$?
  echo "$code" > code.partial
  mv code.partial code
}

follow() {
  local from=$1
  [ "$from" -gt 0 ] || from=$(($(wc -l < log) - 20))
  [ "$from" -gt 0 ] || from=1
  {
    tail --lines=+"$from" --follow log &
    trap 'kill $!' EXIT      # also if the directory disappears, or awk would wait for more
    flock --shared lock true # when the run has ended
    sleep 1
  } | awk -v number="$from" '{ print number++ "\t" $0; fflush() }'
}

state() {
  local found=lost # the machine has restarted, or the run was killed with its supervisor
  if running; then
    found=running
  elif [ -e code ]; then
    found="ended $(cat code)"
  elif [ ! -e words ]; then
    found=absent
  fi
  echo "bert_jax worker ${HOSTNAME:-$(hostname)}: $found"
}

last() { tail --lines="$1" log | sed "s/^/[${HOSTNAME:-$(hostname)}] /"; }

stop() {
  running || return 0
  kill -TERM -- "-$(cat pid)" 2> /dev/null || true
  flock --shared --timeout 60 lock true || kill -KILL -- "-$(cat pid)"
}

"$@"
