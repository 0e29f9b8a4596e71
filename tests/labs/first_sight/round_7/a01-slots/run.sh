#!/usr/bin/env bash
# run.sh PYTHON [RANKS]
set -u
PY=$1
RANKS=${2:-4}
export SLOTS=${SLOTS:-3}
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29701 WORLD_SIZE=$RANKS OMP_NUM_THREADS=1
export WORK=$(mktemp -d /tmp/charlm.XXXXXX)

pids=()
for ((r = 0; r < RANKS; r++)); do
  RANK=$r LOCAL_RANK=$r "$PY" slot.py "$PY" -u train.py --epochs 2 &
  pids+=($!)
  sleep 0.3
done
trap 'kill "${pids[@]}" 2>/dev/null' INT TERM
code=0
for p in "${pids[@]}"; do wait "$p" || code=$?; done
rm -rf "$WORK"
exit $code
