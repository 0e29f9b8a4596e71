#!/bin/sh
# run.sh PYTHON
PY=${1:-python3}
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=2 OMP_NUM_THREADS=1
MASTER_PORT=$("$PY" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MASTER_PORT
RANK=0 "$PY" train.py &
first=$!
RANK=1 "$PY" train.py &
second=$!
wait $first
a=$?
wait $second
b=$?
[ $a -eq 0 ] && [ $b -eq 0 ]
