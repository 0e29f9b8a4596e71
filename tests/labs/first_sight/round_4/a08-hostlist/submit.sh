#!/usr/bin/env bash
# usage: submit.sh HOSTFILE SCRIPT [ARGS]: one agent for every host of the file
set -u
hostfile=$1; shift
NNODES=$(grep -c 'slots=' "$hostfile")
PORT=$({python} -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
MASTER=${MASTER:-127.0.0.1}
CLUSTER=${CLUSTER:-sandbox}

start_on() {   # HOST SLOTS SCRIPT [ARGS]
    local host=$1 slots=$2; shift 2
    local agent=({python} -m torch.distributed.run --nnodes "$NNODES" --nproc_per_node "$slots" --rdzv_id "job$$"
                 --rdzv_backend c10d --rdzv_endpoint "$MASTER:$PORT" "$@")
    if [ "$CLUSTER" = sandbox ]; then
        "${agent[@]}" &          # all agents on this machine
    else
        ssh -n "$host" cd "$PWD" '&&' "${agent[@]}" &
    fi
    agents+=($!)
}

agents=()
trap 'kill "${agents[@]}" 2>/dev/null' EXIT TERM INT
while read -r host slots; do
    start_on "$host" "${slots#slots=}" "$@"
done < "$hostfile"
status=0
for pid in "${agents[@]}"; do wait "$pid" || status=$?; done
exit $status
