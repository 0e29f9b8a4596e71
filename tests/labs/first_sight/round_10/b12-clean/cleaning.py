import re
import resource

SLUG = re.compile(r"(?:[a-z0-9]+[-_./]?)+$")
SPACE = re.compile(r"[ \t]+")


def init_worker(cpu_seconds):
    """A document that takes too long must not eat the node: CPU seconds are limited for each worker."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))


def clean(text):
    kept = []
    for line in text.split("\n"):
        line = SPACE.sub(" ", line.strip())
        if not line or SLUG.match(line):
            continue
        kept.append(line)
    return "\n".join(kept)


def encode(text, size=96):
    text = clean(text)
    ids = [min(ord(c), 255) for c in text][:size]
    return ids + [0] * (size - len(ids))
