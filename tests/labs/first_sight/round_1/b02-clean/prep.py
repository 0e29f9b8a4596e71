import re

WS = re.compile(r"[ \t]+")
# keep whole sentences and list items, drop headings and menu debris
SENTENCE = re.compile(r"^(?:[-*]?\s*[\w']+[ ,;:]*)+[.!?]$")


def clean(text):
    kept = []
    for line in text.split("\n"):
        line = WS.sub(" ", line.strip())
        if not line:
            continue
        if SENTENCE.match(line):
            kept.append(line)
    return " ".join(kept)


def encode(text, length):
    ids = [b for b in text.encode("utf-8")][:length]
    return ids + [0] * (length - len(ids))
