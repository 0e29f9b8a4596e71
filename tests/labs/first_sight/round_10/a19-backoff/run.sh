#!/bin/bash
PY=${1:-python3}
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1 SHARD_PORT=31329
"$PY" shardserver.py $SHARD_PORT & srv=$!
trap 'kill $srv 2>/dev/null' EXIT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31319 train.py
