#!/bin/bash
# one process for each stage
export MASTER_ADDR=127.0.0.1
export MASTER_PORT=$({python} -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export WORLD_SIZE=3 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo
pids=()
for ((r = 0; r < WORLD_SIZE; r++)); do
    RANK=$r LOCAL_RANK=$r {python} pipe.py &
    pids+=($!)
done
status=0
for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
done
exit $status
