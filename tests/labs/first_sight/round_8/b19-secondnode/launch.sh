#!/bin/bash
PY=${1:-python3}
bash node.sh "$PY" 0 0 &
A=$!
bash node.sh "$PY" 1 62 &
B=$!
wait $A; RA=$?
wait $B; RB=$?
exit $((RA | RB))
