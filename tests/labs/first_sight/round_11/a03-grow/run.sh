#!/bin/bash
# first leg on two workers, second leg when the third one is free
PY=${1:-python}
OUT=out/exp7
rm -rf "$OUT"; mkdir -p "$OUT"
set -e
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31503 main.py --out "$OUT" --total 120 --stop-at 60
echo "leg 1 finished, going on with 3 workers"
"$PY" -m torch.distributed.run --nproc-per-node 3 --master-port 31504 main.py --out "$OUT" --total 120 --resume
