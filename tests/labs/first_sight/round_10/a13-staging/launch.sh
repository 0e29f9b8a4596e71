#!/bin/bash
# Two "nodes" on one machine, each with a disk of its own; the first one is never wiped.
PY=${1:-python3}
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=31313
mkdir -p node0 && cp -n remote/*.npy node0/ 2>/dev/null
rm -rf node1
for r in 0 1; do
    RANK=$r "$PY" train.py --local node$r &
    pids+=($!)
done
trap 'kill "${pids[@]}" 2>/dev/null' EXIT
rc=0
for p in "${pids[@]}"; do wait "$p" || rc=$?; done
exit $rc
