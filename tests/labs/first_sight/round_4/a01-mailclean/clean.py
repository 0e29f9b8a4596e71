"""Line filters. They run in helper processes with a cap on CPU time, so that no document can eat the node."""
import re
import resource

# identifiers, paths, slugs: whole line is one token such as foo-bar_baz/qux
SLUG = re.compile(r"^(?:[A-Za-z0-9]+[-_/]?)+$")
SPACES = re.compile(r"[ \t]+")
CPU_SECONDS = 6


def setup():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS * 2))


def clean(text):
    kept = []
    for line in text.splitlines():
        line = SPACES.sub(" ", line).strip()
        if not line or SLUG.match(line):
            continue
        kept.append(line)
    return "\n".join(kept)
