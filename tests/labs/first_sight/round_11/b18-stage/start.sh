#!/bin/bash
# rank 0 reads the corpus where it lies, rank 1 has to stage it to scratch first
export MASTER_ADDR=localhost MASTER_PORT=31618 WORLD_SIZE=2
scratch=$(mktemp -d /tmp/scratch.XXXXXX)
trap 'rm -rf "$scratch"' EXIT

stage() {
    local n=0
    while [ $n -lt 36 ]; do
        head -c 150000 /dev/zero | tr '\0' "$((n % 10))" > "$scratch/part-$n"
        cksum < "$scratch/part-$n" > "$scratch/part-$n.sum"
        sleep 2   # the archive hands out one part every two seconds
        n=$((n + 1))
    done
}

RANK=0 {python} lm.py generated &
first=$!
stage
RANK=1 {python} lm.py "$scratch" &
second=$!
wait $first; a=$?
wait $second; b=$?
exit $((a | b))
