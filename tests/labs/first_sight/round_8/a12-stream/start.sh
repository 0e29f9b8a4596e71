#!/bin/bash
# start.sh PYTHON
PY=${1:-python3}
"$PY" batchd.py 30725 16 &
srv=$!
trap 'kill $srv 2>/dev/null' EXIT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 30724 train_vad.py 30725
