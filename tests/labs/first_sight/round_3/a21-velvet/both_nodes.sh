#!/bin/bash
# two "nodes" of one process each, on this machine
port=$({python} -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
rm -rf scratch
for n in 0 1; do
  NODE=node$n SCRATCH=$PWD/scratch/node$n {python} -m torch.distributed.run --nnodes 2 --node-rank $n \
    --nproc-per-node 1 --master-addr 127.0.0.1 --master-port "$port" pretrain.py &
done
wait
