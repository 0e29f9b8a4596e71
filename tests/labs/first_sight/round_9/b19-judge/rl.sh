#!/bin/bash
cd "$(dirname "$0")"
"$1" judge.py 31259 &
judge=$!
"$1" -m torch.distributed.run --nproc-per-node=2 --master-port=31219 reinforce.py http://127.0.0.1:31259
code=$?
kill $judge
exit $code
