#!/bin/bash
# job.sh PYTHON
PY=${1:-python3}
rm -rf hub mirror.addr
"$PY" mirror.py &
mirror=$!
trap 'kill $mirror 2>/dev/null' EXIT
until [ -s mirror.addr ]; do sleep 0.2; done
"$PY" -m torch.distributed.run --standalone --nproc_per_node=3 finetune.py
