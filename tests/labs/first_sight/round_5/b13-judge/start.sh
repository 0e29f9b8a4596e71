#!/bin/bash
set -u
python=$1
export JUDGE_FILE=$PWD/judge.addr
rm -f "$JUDGE_FILE"
"$python" judge.py "$JUDGE_FILE" &
judge=$!
while [ ! -s "$JUDGE_FILE" ]; do sleep 0.2; done
"$python" -m torch.distributed.run --standalone --nproc_per_node 2 train.py
code=$?
kill $judge
exit $code
