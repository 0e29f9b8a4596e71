#!/bin/bash
# run.sh [python]: both ranks on this machine; USR1 means "the allocation ends soon, save now"
PY=${1:-python3}
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=31306
rm -rf logs; mkdir -p logs ckpt

bash allocation.sh $$ logs/rank0.log & pids=$!
for r in 1 0; do
    RANK=$r LOCAL_RANK=$r "$PY" -u pretrain.py --log logs/rank$r.log &
    pids="$pids $!"
done
train=$!

trap 'echo "[run.sh] USR1: telling $train to save"; kill -USR1 $train' USR1
trap 'kill $pids 2>/dev/null' EXIT
trap 'exit 143' TERM INT

while kill -0 $train 2>/dev/null; do wait $train; done
echo "[run.sh] done"
