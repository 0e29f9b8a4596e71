#!/bin/bash
# three ranks on this machine
PY=${1:-python3}
export MASTER_ADDR=127.0.0.1 MASTER_PORT=31108 WORLD_SIZE=3 OMP_NUM_THREADS=1
pids=()
trap 'kill "${pids[@]}" 2>/dev/null' TERM INT
for r in 0 1 2; do
  RANK=$r LOCAL_RANK=$r "$PY" -u fit.py --epochs 30 &
  pids+=($!)
done
wait "${pids[@]}"
