#!/bin/bash
# node.sh PYTHON NODE_RANK SECONDS: waits for its image, then joins
sleep "$3"
exec "$1" -m torch.distributed.run --nnodes 2 --node-rank "$2" --nproc-per-node 2 \
    --master-addr 127.0.0.1 --master-port 30819 train.py
