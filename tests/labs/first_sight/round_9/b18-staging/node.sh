#!/bin/bash
# node.sh PYTHON NODE NODES RUN: what runs on a node: data first, then the worker
set -e
python=$1 node=$2 nodes=$3 run=$4
scratch=$run/scratch$node
mkdir -p "$scratch"
"$python" stage.py --source "$run/source" --target "$scratch" --rate $([ "$node" = 1 ] && echo 160000 || echo 40000000)
export RANK=$node WORLD_SIZE=$nodes MASTER_ADDR=127.0.0.1 MASTER_PORT=31218 OMP_NUM_THREADS=1
exec "$python" -u worker.py "$scratch"
