#!/bin/bash
# launch.sh PYTHON
PY=${1:-python3}
dir=$(mktemp -d /tmp/best-XXXXXX)
trap 'rm -rf "$dir"' EXIT
export MASTER_ADDR=127.0.0.1 MASTER_PORT=30728 WORLD_SIZE=3 OMP_NUM_THREADS=1
pids=()
for r in 0 1 2; do
    RANK=$r LOCAL_RANK=$r "$PY" train.py "$dir" &
    pids+=($!)
done
for p in "${pids[@]}"; do wait "$p" || exit 1; done
