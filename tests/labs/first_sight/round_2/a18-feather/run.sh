#!/bin/bash
export MASTER_ADDR=localhost MASTER_PORT=$((22000 + RANDOM % 20000)) WORLD_SIZE=3
pids=""
for r in 0 1 2; do
    RANK=$r {python} -u train.py &
    pids="$pids $!"
done
sh house.sh $pids > house.log 2>&1 &
for pid in $pids; do
    wait $pid || exit 1
done
