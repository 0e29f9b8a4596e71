#!/bin/bash
# usage: run.sh PYTHON
PY=${1:-python3}
PORT=30851
"$PY" engine.py $PORT &
ENGINE=$!
trap 'kill $ENGINE 2>/dev/null' EXIT
export ROLLOUT_URL=http://127.0.0.1:$PORT
until "$PY" -c "import urllib.request as u; u.urlopen('$ROLLOUT_URL/health')" 2>/dev/null; do sleep 1; done
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 30804 ppo.py
