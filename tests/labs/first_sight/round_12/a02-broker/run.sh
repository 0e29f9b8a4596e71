#!/bin/bash
PY=${1:-python}
export BROKER_URL=http://127.0.0.1:31752
"$PY" broker.py --port 31752 --per-client 8 &
BROKER=$!
trap 'kill $BROKER 2>/dev/null' EXIT
trap 'kill $TRAIN 2>/dev/null; wait $TRAIN' TERM INT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31702 train.py &
TRAIN=$!
wait $TRAIN
