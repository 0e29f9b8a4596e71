#!/bin/bash
# usage: run.sh [python]      short queue: MAX_SECONDS of training, then an evaluation and a clean exit
PY=${1:-python3}
export OMP_NUM_THREADS=1
export MAX_SECONDS=${MAX_SECONDS:-40}
cd "$(dirname "$0")"
mkdir -p scratch
exec "$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31303 main.py \
    --work scratch --hidden 256 --batch 64
