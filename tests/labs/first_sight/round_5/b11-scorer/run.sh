#!/bin/bash
# usage: run.sh PYTHON
PY=$1
rm -f reward.url
"$PY" service.py reward.url &
SERVICE=$!
trap 'kill $SERVICE 2>/dev/null' EXIT
until [ -s reward.url ]; do sleep 0.3; done
export REWARD_URL=$(cat reward.url)
echo "reward service at $REWARD_URL"
"$PY" -m torch.distributed.run --standalone --nproc_per_node 2 grpo.py
