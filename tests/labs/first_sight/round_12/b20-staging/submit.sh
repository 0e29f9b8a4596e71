#!/bin/bash
# shards are made once, then each rank stages its own to scratch; shard 1 lies on the far file server
PY=${1:-python}
cd "$(dirname "$0")"
export SCRATCH=$(mktemp -d /tmp/stage-XXXXXX) OMP_NUM_THREADS=1
$PY prepare.py "$SCRATCH/store" || exit 1
export MASTER_ADDR=127.0.0.1 MASTER_PORT=31820 WORLD_SIZE=3
for r in 0 1 2; do
  RANK=$r $PY train.py > "$SCRATCH/rank$r.log" 2>&1 &
  pids[r]=$!
done
code=0
for r in 0 1 2; do wait "${pids[r]}" || code=$?; done
tail -n 3 "$SCRATCH/rank0.log"
rm -rf "$SCRATCH"
exit $code
