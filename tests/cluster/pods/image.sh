#!/bin/sh
# Builds the image of the pods in tests/cluster/pods: DIR/image.tar, a small Debian with Python and what torch's wheels link to. As root,
# on Debian. diag, torch and the Python that they belong to are mounted by the tests. Changing this file makes a new image.
set -eu
. "$(dirname "$0")/../../debian.sh"
dir=$1
suite=bookworm
# Debian's Python runs the image of deploy/docker that is built on this one (which needs setcap), not the jobs: for those it brings
# the libraries that a Python built on this machine links to.
packages=python3,python3-venv,procps,libcap2-bin,libgomp1

root=$dir/rootfs
mkdir -p "$dir"
debian "$suite" "$root" "$packages" "$dir/debootstrap.log"
rm -rf "$root"/var/cache/apt "$root"/var/lib/apt "$root"/var/log/* "$root"/usr/share/doc "$root"/usr/share/man \
  "$root"/usr/share/info "$root"/usr/share/locale "$root"/usr/share/i18n "$root"/usr/share/zoneinfo
chmod 755 "$root/root" # a Python below /root is mounted there, for other users too
tar --one-file-system --numeric-owner -C "$root" -cf "$dir/image.tar.new" .
mv "$dir/image.tar.new" "$dir/image.tar"
rm -rf --one-file-system "$root"
