#!/bin/bash
# Stands in for the batch system on a workstation: allocation.sh PID LOG
# Sends USR1 to the batch script once this allocation's share of steps is done.
share=${SHARE:-240}
while sleep 1; do
    kill -0 $1 2>/dev/null || exit
    n=$(grep -o 'step=[0-9]*' $2 2>/dev/null | tail -1 | cut -d= -f2)
    [ "${n:-0}" -ge $share ] && break
done
kill -USR1 $1
