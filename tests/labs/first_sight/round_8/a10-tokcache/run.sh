#!/bin/bash
# run.sh PYTHON
PY=${1:-python3}
work=$(mktemp -d /tmp/tokcache-XXXXXX)
trap 'rm -rf "$work"' EXIT
"$PY" -m torch.distributed.run --nproc-per-node 2 --max-restarts 3 --rdzv-backend=c10d --rdzv-endpoint=localhost:0 lm.py "$work"
