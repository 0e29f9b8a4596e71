#!/bin/bash
# two processes on this machine; a pause between them, as the login node dislikes bursts
PY=${1:-python}
cd "$(dirname "$0")"
export MASTER_ADDR=127.0.0.1 MASTER_PORT=31807 WORLD_SIZE=2 OMP_NUM_THREADS=1
pids=()
for r in 0 1; do
  RANK=$r LOCAL_RANK=$r $PY app.py model.dim=64 train.lr=0.01 &
  pids+=($!)
  sleep 2
done
trap 'kill "${pids[@]}" 2>/dev/null' INT TERM
code=0
for p in "${pids[@]}"; do wait "$p" || code=$?; done
exit $code
