#!/bin/bash
# run.sh PYTHON
PY=${1:-python3}
"$PY" reward_server.py 30713 &
server=$!
trap 'kill $server 2>/dev/null' EXIT
sleep 1
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 30712 ppo.py 30713
