#!/bin/sh
# publish.sh CHECKPOINT FOLDER: puts a checkpoint and its card where the serving side picks it up
set -e
mkdir -p "$2"
sum=$(cksum "$1" | cut -d' ' -f1)
cp "$1" "$2/model-$sum.pt"
printf 'model-%s.pt\n' "$sum" > "$2/.current.new"
mv "$2/.current.new" "$2/current"
cp -i "$1.json" "$2/card.json"
