#!/bin/bash
set -e
PY={python}
rm -rf work; mkdir -p work
$PY tools/store.py --root work/store --port-file work/port & STORE=$!
trap 'kill $STORE' EXIT
while [ ! -s work/port ]; do sleep 0.2; done
export STORE_URL=http://127.0.0.1:$(cat work/port)/ckpt
$PY -m torch.distributed.run --standalone --nproc-per-node=2 main.py "$@"
