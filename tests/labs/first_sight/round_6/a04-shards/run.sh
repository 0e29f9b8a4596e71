#!/bin/bash
# run.sh PYTHON: shard server and three trainers on this machine
PY=${1:-python3}
rm -f blob.port
$PY blobserver.py &
SERVER=$!
trap 'kill $SERVER 2>/dev/null' EXIT
while [ ! -s blob.port ]; do sleep 0.2; done
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=3
export MASTER_PORT=$($PY -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
pids=()
for r in 0 1 2; do
    RANK=$r LOCAL_RANK=$r $PY train.py &
    pids+=($!)
done
rc=0
for p in "${pids[@]}"; do wait "$p" || rc=1; done
exit $rc
