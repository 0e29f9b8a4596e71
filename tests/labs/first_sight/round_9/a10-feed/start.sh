#!/bin/sh
PY=${1:-python3}
PORT=31110
"$PY" feeder.py $PORT &
feeder=$!
"$PY" -m torch.distributed.run --nproc-per-node 3 --master-port 31111 trainer.py $PORT &
ranks=$!
trap 'kill $ranks; wait $ranks; kill $feeder; exit 143' TERM INT
wait $ranks
code=$?
kill $feeder
exit $code
