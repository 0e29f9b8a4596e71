#!/bin/bash
export ROLLOUT_SOCKET=./rollout.sock
{python} rollout_server.py "$ROLLOUT_SOCKET" &
server=$!
trap 'kill $server 2>/dev/null' EXIT
{python} -m torch.distributed.run --nproc_per_node 2 --master-port 31606 grpo.py
