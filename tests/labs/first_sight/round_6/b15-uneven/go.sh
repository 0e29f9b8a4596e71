#!/bin/bash
port=$({python} -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$port WORLD_SIZE=2 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
RANK=1 {python} trainer.py &
other=$!
RANK=0 {python} trainer.py
code=$?
wait $other && exit $code
