#!/bin/bash
set -u
PY=${1:-python3}
RUN=$(mktemp -d /tmp/run.XXXXXX)
"$PY" collector.py 30860 "$RUN" &
COLLECTOR=$!
trap 'kill $COLLECTOR; rm -rf "$RUN"' EXIT
sleep 2
METRICS_ADDR=127.0.0.1:30860 "$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 30810 train.py
