#!/usr/bin/env bash
PY=${1:-python}
mkdir -p out
rm -f out/port
"$PY" -u serve.py --port-file out/port > out/serve.log 2>&1 &
srv=$!
trap 'kill $srv 2>/dev/null' EXIT INT TERM
for _ in $(seq 100); do [ -s out/port ] && break; sleep 0.2; done
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 31506 distill.py --teacher "127.0.0.1:$(cat out/port)"
