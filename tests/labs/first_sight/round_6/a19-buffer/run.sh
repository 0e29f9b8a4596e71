#!/bin/bash
# run.sh PYTHON
PY=${1:-python3}
export OMP_NUM_THREADS=1 MASTER_ADDR=127.0.0.1 WORLD_SIZE=3
export MASTER_PORT=$("$PY" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
pids=
for RANK in 0 1 2; do
    export RANK
    "$PY" train.py &
    pids="$pids $!"
done
code=0
for pid in $pids; do wait "$pid" || code=$?; done
echo "finished with $code"
exit $code
