#!/bin/bash
# one node of the job: node.sh PYTHON NODE_RANK
PY=$1
export NODE_SCRATCH=$(mktemp -d /tmp/scratch.node$2.XXXXXX)
trap 'rm -rf "$NODE_SCRATCH"' EXIT
"$PY" shards.py          # prolog: the first part is packed on each node
"$PY" -m torch.distributed.run --nnodes 2 --node-rank "$2" --nproc-per-node 2 \
    --master-addr 127.0.0.1 --master-port 30805 train.py
