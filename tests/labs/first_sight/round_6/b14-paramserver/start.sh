#!/bin/bash
set -e
PORT=$({python} -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export OMP_NUM_THREADS=1 WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT
for rank in 1 2; do
    RANK=$rank {python} main.py --rank $rank --port $PORT &
done
RANK=0 {python} main.py --rank 0 --port $PORT
wait
