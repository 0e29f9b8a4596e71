#!/bin/bash
# start.sh PYTHON
cd "$(dirname "$0")"
out=$(mktemp -d /tmp/vae-XXXXXX)
"$1" collector.py --port 31258 --file "$out/metrics.jsonl" &
collector=$!
trap 'kill $collector 2>/dev/null' EXIT
echo "metrics in $out"
"$1" -m torch.distributed.run --nproc-per-node 2 --master-port 31208 vae.py --metrics-port 31258
