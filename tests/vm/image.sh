#!/bin/sh
# Builds the virtual machine of the tests in tests/vm: DIR/vmlinuz and DIR/rootfs.cpio. As root, on Debian. Nothing is installed on the
# host: the kernel comes out of its package, and the rest lives in a Debian of its own. Changing this file makes a new image.
set -eu
. "$(dirname "$0")/../debian.sh"
dir=$1
suite=bookworm
packages=python3,iproute2,kmod,procps,ibverbs-providers,ibverbs-utils,perftest,rdma-core
# crc32: rxe asks for it by an alias that names no module, and so does ext4 for crc32c
modules="rdma_rxe crc32_generic veth overlay virtio_pci virtio_blk ext4 crc32c_generic"

root=$dir/rootfs
mkdir -p "$dir"
rm -rf --one-file-system "$dir/kernel"
# The kernel's package is only read: its scripts would make an initramfs that nobody boots.
debian "$suite" "$root" "$packages" "$dir/debootstrap.log"
kernel=$(chroot "$root" apt-cache depends --important linux-image-amd64 | sed -n 's/^ *Depends: *//p' | head -1)
chroot "$root" sh -c "cd /tmp && apt-get download -q -o APT::Sandbox::User=root $kernel" >>"$dir/debootstrap.log" 2>&1
dpkg -x "$root"/tmp/linux-image-*.deb "$dir/kernel"
cp "$dir"/kernel/boot/vmlinuz-* "$dir/vmlinuz"

# Only the modules that are asked for, and what they need.
release=$(ls "$dir/kernel/lib/modules")
mkdir -p "$root/lib/modules"
mv "$dir/kernel/lib/modules/$release" "$root/lib/modules/"
chroot "$root" depmod "$release"
for module in $modules; do
  chroot "$root" modprobe -S "$release" --show-depends "$module" | sed -n 's/^insmod //p' | cut -d' ' -f1
done | sort -u >"$dir/modules"
(cd "$root" && find "lib/modules/$release" -name '*.ko' | while read -r path; do grep -qxF "/$path" "$dir/modules" || rm "$path"; done)
chroot "$root" depmod "$release"

# diag's dependencies, compiled ahead: that takes long under emulation. (unchecked: the archive need not keep times)
mv "$dir/site/bin/py-spy" "$root/usr/local/bin/"
cp -r "$dir/site/." "$root/usr/lib/python3/dist-packages/"
chroot "$root" python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3/dist-packages /usr/lib/python3.11

rm -rf "$root"/tmp/* "$root"/var/cache/apt "$root"/var/lib/apt "$root"/var/log/* "$root"/boot \
  "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/info "$root"/usr/share/locale "$root"/usr/share/i18n \
  "$root"/usr/lib/x86_64-linux-gnu/gconv "$root"/usr/lib/python3*/test "$root"/usr/share/zoneinfo "$root"/usr/lib/udev
rm -f "$root"/dev/console
mknod -m 600 "$root/dev/console" c 5 1
# Not compressed: unpacking under emulation takes longer than reading.
(cd "$root" && find . -xdev -print0 | cpio --null --create --format=newc --owner=0:0 --quiet) >"$dir/rootfs.cpio.new"
mv "$dir/rootfs.cpio.new" "$dir/rootfs.cpio"
rm -rf --one-file-system "$root" "$dir/kernel" "$dir/site"
