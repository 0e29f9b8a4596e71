#!/bin/bash
# nightly.sh PYTHON [RANKS]: a short training as a check of the code, with its logs on the console
PY=${1:-python3}
N=${2:-2}
LOGS=$(mktemp -d /tmp/nightly.XXXXXX)
trap 'rm -rf "$LOGS"; kill $(jobs -p) 2>/dev/null' EXIT
export MASTER_ADDR=127.0.0.1 MASTER_PORT=30815 WORLD_SIZE=$N OMP_NUM_THREADS=1
for ((r = 0; r < N; r++)); do
    : > "$LOGS/rank$r.log"
    RANK=$r LOCAL_RANK=$r "$PY" -u smoke.py > "$LOGS/rank$r.log" 2>&1 &
done
tail -q -F "$LOGS"/rank*.log &
wait
echo "nightly: done, uploading"
tar -C "$LOGS" -czf "$LOGS.tar.gz" . && rm -f "$LOGS.tar.gz"
