#!/bin/bash
# Copy each rank's shard while it is not being written.
set -euo pipefail
every=12
sleep "$every"
while true; do
    for pidfile in run/rank1.pid run/rank0.pid; do
        pid=$(cat "$pidfile")
        name=$(basename "$pidfile" .pid)
        kill -STOP "$pid"
        cp "run/ckpt/$name.pt" "run/snap/$name.pt"
        gzip "run/snap/$name.pt"
        kill -CONT "$pid"
        echo "$(date +%T) $name: $(stat -c %s "run/snap/$name.pt.gz") bytes"
    done
    sleep "$every"
done
