# Sourced by the scripts that make images: debian SUITE ROOT PACKAGES LOG makes a small Debian in ROOT. A mirror may refuse requests
# for a while: each try waits longer than the one before.
debian() {
  for pause in 5 15 45 90 0; do
    rm -rf --one-file-system "$2"
    if debootstrap --variant=minbase --include="$3" "$1" "$2" >"$4" 2>&1; then
      return 0
    fi
    tail -5 "$4" >&2
    sleep "$pause"
  done
  return 1
}
