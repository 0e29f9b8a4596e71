#!/bin/bash
#SBATCH --job-name=seg-b3
#SBATCH --ntasks=3
PY=${1:-python}
cd "$(dirname "$0")"
mkdir -p out && rm -f out/*
ulimit -f 6144   # site policy: no single file over 6 MB in scratch
export MASTER_ADDR=127.0.0.1 MASTER_PORT=31510 WORLD_SIZE=3
pids=()
for r in 0 1 2; do
  RANK=$r LOCAL_RANK=$r "$PY" -u segment.py > out/rank$r.log 2>&1 &
  pids+=($!)
done
trap 'kill "${pids[@]}" 2>/dev/null' TERM INT
rc=0
for p in "${pids[@]}"; do wait "$p" || rc=$?; done
exit $rc
