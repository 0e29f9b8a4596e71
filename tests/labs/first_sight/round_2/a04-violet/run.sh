#!/bin/bash
# three ranks on one box
export MASTER_ADDR=127.0.0.1
export MASTER_PORT=$((21000 + RANDOM % 20000))
export WORLD_SIZE=3
mkdir -p logs
for RANK in 1 2; do
    RANK=$RANK {python} train.py --plan plan.json > logs/rank$RANK.log 2>&1 &
done
RANK=0 {python} train.py --plan plan.json 2>&1 | tee logs/rank0.log &
wait
echo "all ranks are through"
