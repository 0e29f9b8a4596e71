# Shared box: a process that is over its share of memory rests until it is under it again.
share=$((640 * 1024))
while sleep 2; do
    left=0
    for pid in "$@"; do
        kb=$(awk '/^VmRSS/ {print $2}' /proc/$pid/status 2>/dev/null)
        [ -n "$kb" ] || continue
        left=1
        if [ "$kb" -gt $share ]; then
            kill -STOP $pid
        else
            kill -CONT $pid
        fi
        echo "$(date +%T) $pid $kb"
    done
    [ $left = 1 ] || exit 0
done
