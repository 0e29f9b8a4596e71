#!/bin/bash
PY=${1:-python3}
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
rm -f runs.db runs.db-journal
"$PY" export.py runs.db csv 288 &
exporter=$!
trap 'kill $exporter 2>/dev/null' EXIT
trap 'exit 143' TERM INT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31308 train.py
