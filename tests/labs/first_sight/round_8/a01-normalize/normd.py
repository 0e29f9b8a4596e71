"""Line service: one document in, one JSON line out."""
import json
import logging
import sys
import unicodedata

logging.basicConfig(stream=sys.stderr, level=logging.WARNING,
                    format="%(asctime)s %(name)s[%(process)d] %(levelname)s %(message)s")
log = logging.getLogger("normd")

MAP = {"\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u00a0": " "}


def normalize(text):
    out, odd = [], []
    for ch in unicodedata.normalize("NFKC", text):
        if ord(ch) < 128:
            out.append(ch)
        elif ch in MAP:
            out.append(MAP[ch])
        else:
            odd.append(ch)
            out.append(" ")
    if odd:
        log.warning("no mapping for %s, replaced by blanks", " ".join("U+%04X" % ord(c) for c in odd))
    return "".join(out)


for line in sys.stdin:
    text = json.loads(line)["text"]
    clean = normalize(text)
    sys.stdout.write(json.dumps({"ids": [b % 256 for b in clean.encode()][:64]}) + "\n")
    sys.stdout.flush()
