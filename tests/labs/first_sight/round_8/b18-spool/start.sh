#!/bin/bash
PY=${1:-python3}
export SPOOL=$(mktemp -d /tmp/spool.XXXXXX)
"$PY" worker.py "$SPOOL" &
GEN=$!
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 30818 grpo.py
RC=$?
cat "$SPOOL/summary.json"; echo
rm -rf "$SPOOL"
kill $GEN 2>/dev/null
wait $GEN 2>/dev/null
exit $RC
