#!/bin/bash
PY=$1
export FEATURE_PORT=29856
$PY service.py $FEATURE_PORT &
service=$!
trap 'kill $service 2>/dev/null' EXIT
export MASTER_ADDR=127.0.0.1 MASTER_PORT=29806 WORLD_SIZE=2
RANK=1 LOCAL_RANK=1 $PY train_ranker.py &
worker=$!
RANK=0 LOCAL_RANK=0 $PY train_ranker.py
wait $worker
