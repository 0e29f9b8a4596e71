#!/bin/bash
PY=${1:-python}
export REGISTRY=http://127.0.0.1:31757
"$PY" registry.py --port 31757 &
REG=$!
trap 'kill $REG 2>/dev/null' EXIT
trap 'kill $TRAIN 2>/dev/null; wait $TRAIN' TERM INT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31707 distill.py &
TRAIN=$!
wait $TRAIN
