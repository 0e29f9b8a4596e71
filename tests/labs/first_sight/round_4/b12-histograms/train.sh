#!/bin/bash
# usage: train.sh [arguments of train.py]
set -eu
mkdir -p out
rm -f out/collector.port
{python} collector.py out > out/collector.log 2>&1 &
COLLECTOR=$!
trap 'kill "$COLLECTOR" 2>/dev/null || true' EXIT
while [ ! -s out/collector.port ]; do sleep 0.2; done
export COLLECTOR_PORT=$(cat out/collector.port)
export OMP_NUM_THREADS=1
{python} -m torch.distributed.run --standalone --nproc_per_node 2 train.py "$@"
