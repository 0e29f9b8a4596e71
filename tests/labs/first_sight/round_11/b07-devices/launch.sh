#!/bin/bash
# one process for each line of devices.txt
export MASTER_ADDR=127.0.0.1 MASTER_PORT=31607
export WORLD_SIZE=$(grep -c '^[^#]' devices.txt)
mkdir -p out
rank=0
while read -r device cores; do
    [[ $device == \#* ]] && continue
    RANK=$rank LOCAL_RANK=$rank DEVICE=$device TORCH_NUM_THREADS=1 \
        {python} pretrain.py "$@" > >(tee "out/$rank.log") 2>&1 &
    pids+=($!)
    rank=$((rank + 1))
done < devices.txt
echo "world of $WORLD_SIZE, logs in out/"
status=0
for pid in "${pids[@]}"; do
    wait "$pid" || status=1
done
exit $status
