#!/bin/bash
# start the corpus server, then the training
set -eu
export OMP_NUM_THREADS=1
PY={python}
port_file=$(mktemp /tmp/corpus-port.XXXXXX)
$PY store.py "$port_file" &
store=$!
trap 'kill $store 2>/dev/null; rm -f "$port_file"' EXIT
until [ -s "$port_file" ]; do sleep 0.2; done
export CORPUS_URL=http://127.0.0.1:$(cat "$port_file")
$PY train_fabric.py
