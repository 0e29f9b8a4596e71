#!/bin/bash
#SBATCH --signal=B:USR1@60
PY=${1:-python3}
export RUN_DIR=$(mktemp -d /tmp/train.XXXXXX)
trap 'rm -rf "$RUN_DIR"' EXIT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 30814 trainer.py &
TRAIN=$!
until [ -e "$RUN_DIR/rank0.pid" ] && [ -e "$RUN_DIR/rank1.pid" ]; do sleep 1; done
sleep 24
# a minute before the limit: what the scheduler does at the end of the slot
for f in "$RUN_DIR"/rank*.pid; do kill -USR1 "$(cat "$f")"; done
wait $TRAIN
