#!/usr/bin/env bash
# Three "nodes" of one rank each, every node with a scratch disk of its own.
cd "$(dirname "$0")" || exit 1
export OMP_NUM_THREADS=1
NODES=(login-a node-b node-c)
PORT=31405
mkdir -p logs
# node-c is kept from the tuning runs, the others are fresh
rm -rf scratch/login-a scratch/node-b
[ -f scratch/node-c/tokens.npy ] || {python} corpus.py scratch/node-c
pids=()
for i in "${!NODES[@]}"; do
  SCRATCH="scratch/${NODES[$i]}" {python} -m torch.distributed.run \
      --nnodes "${#NODES[@]}" --node-rank "$i" --nproc-per-node 1 \
      --master-addr 127.0.0.1 --master-port "$PORT" pretrain.py --config small.json 2>&1 | sed -u "s/^/${NODES[$i]}: /" &
  pids+=($!)
done
wait "${pids[@]}"
