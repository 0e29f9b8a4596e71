#!/bin/bash
PY=${1:-python}
rm -rf run; mkdir run
"$PY" node_agent.py run notice.json &
AGENT=$!
trap 'kill $AGENT 2>/dev/null' EXIT
trap 'kill $TRAIN 2>/dev/null; wait $TRAIN' TERM INT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31708 train.py &
TRAIN=$!
wait $TRAIN
