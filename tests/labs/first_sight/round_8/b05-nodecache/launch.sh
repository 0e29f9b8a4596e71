#!/bin/bash
# launch.sh PYTHON [NODES]
for n in $(seq 0 $(( ${2:-2} - 1 ))); do
    bash node.sh "${1:-python3}" "$n" &
    pids+=($!)
done
status=0
for p in "${pids[@]}"; do wait "$p" || status=1; done
exit $status
