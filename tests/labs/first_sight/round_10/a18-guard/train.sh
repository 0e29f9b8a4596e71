#!/bin/bash
PY=${1:-python3}
cd "$(dirname "$0")"
export OMP_NUM_THREADS=1
rm -rf run; mkdir run
"$PY" memguard.py run --high 900 --low 750 >/dev/null 2>&1 &
guard=$!
trap 'kill $guard 2>/dev/null' EXIT
trap 'exit 143' TERM INT
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31318 agent.py agents.json
