#!/bin/bash
PY=${1:-python3}
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
rm -rf inbox
"$PY" collector.py inbox 40 4 &
fleet=$!
trap 'kill $fleet 2>/dev/null' EXIT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31316 policy.py inbox 4
