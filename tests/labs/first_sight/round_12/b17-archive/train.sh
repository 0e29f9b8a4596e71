#!/bin/bash
PY=${1:-python}
cd "$(dirname "$0")"
OUT=$(mktemp -d /tmp/vae-XXXXXX)
$PY -m torch.distributed.run --nproc-per-node 2 --master-port 31817 vae.py --out "$OUT" --bwlimit 140
code=$?
rm -rf "$OUT"
exit $code
