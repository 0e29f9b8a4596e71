#!/usr/bin/env bash
# launch.sh PYTHON [RANKS]
PY=${1:-python3}
N=${2:-3}
rm -rf cache meet
# warm the cache, but not for longer than the queue allows
timeout -s KILL 12 "$PY" build_index.py web code || echo "indexing not finished, the ranks will do the rest"
export WORLD_SIZE=$N INIT="file://$PWD/meet" OMP_NUM_THREADS=1
for ((r = 0; r < N; r++)); do
    RANK=$r "$PY" -u pretrain.py > "rank$r.log" 2>&1 &
done
tail -F -q rank0.log 2>/dev/null &
TAIL=$!
trap 'kill $TAIL 2>/dev/null' EXIT
status=0
for j in $(jobs -p | grep -v "^$TAIL$"); do wait "$j" || status=$?; done
exit $status
