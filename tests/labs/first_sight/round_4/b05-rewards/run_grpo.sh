#!/usr/bin/env bash
# reward service + trainer on one node
set -u
rm -f reward.addr
{python} reward_service.py --addr-file reward.addr > reward_service.log 2>&1 &
SVC=$!
trap 'kill $SVC 2>/dev/null' EXIT
until [ -s reward.addr ]; do sleep 0.3; done
export REWARD_URL="http://$(cat reward.addr)/score"
echo "reward service at $(cat reward.addr | cut -d: -f1), starting trainer"
{python} -m torch.distributed.run --standalone --nproc_per_node 2 grpo.py
