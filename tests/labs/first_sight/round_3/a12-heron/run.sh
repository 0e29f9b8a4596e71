#!/bin/bash
rm -rf box && mkdir box
export WORLD=3
for i in 0 1 2; do
  RANK=$i {python} client.py &
done
wait
echo "all clients done"
