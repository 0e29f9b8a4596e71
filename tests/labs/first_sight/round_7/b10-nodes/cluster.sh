#!/bin/bash
# Two "nodes" on one host, to try the multi-node path before it goes to the cluster.
PY=$1
STAMP() { date +%Y%m%d-%H%M%S; }

start_node() {
  RUN=vit-tiny-$(STAMP)
  $PY -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --max-restarts 0 \
      --rdzv-backend c10d --rdzv-endpoint localhost:29810 --rdzv-id "$RUN" \
      --rdzv-conf join_timeout=1800 --local-addr 127.0.0.1 \
      main.py --exp "$RUN" --epochs 3 2>&1 | sed -u "s/^/[node $1] /"
}

start_node 0 &
sleep 2
start_node 1 &
wait
