#!/usr/bin/env bash
# Index server and training on one machine.  run.sh PYTHON
PY=$1
PORT=29715
export INDEX=127.0.0.1:$PORT OMP_NUM_THREADS=1
"$PY" index_server.py $PORT > /dev/null 2>&1 &
server=$!
trap 'kill $server 2>/dev/null' EXIT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 29716 train.py
