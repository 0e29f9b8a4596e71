#!/bin/sh
# Builds the stand-ins into the folder $1; $2 is the folder of libibverbs-dev's infiniband/verbs.h.
set -e
cd "$(dirname "$0")"
gcc -Wall -Wextra -O2 -shared -fPIC -pthread ${2:+-I"$2"} -Wl,-soname,libibverbs.so.1 -Wl,--version-script=standin_verbs.map -o "$1/libibverbs.so.1" standin_verbs.c
gcc -Wall -Wextra -O2 -shared -fPIC -o "$1/standin_sysfs.so" standin_sysfs.c -ldl
gcc -Wall -Wextra -O2 -shared -fPIC -Wl,-soname,libmlx5.so.1 -Wl,--version-script=standin_mlx5.map -o "$1/libmlx5.so.1" standin_mlx5.c
