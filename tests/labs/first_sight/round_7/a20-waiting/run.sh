#!/usr/bin/env bash
# run.sh PYTHON: teacher and students; the teacher needs its time to load
PY=$1
export TEACHER=127.0.0.1:29721 OMP_NUM_THREADS=1
(sleep 48; exec "$PY" teacher.py "$TEACHER") > /dev/null 2>&1 &
teacher=$!
"$PY" -m torch.distributed.run --nproc-per-node 2 --master-port 29722 distil.py
code=$?
kill $teacher 2>/dev/null
exit $code
