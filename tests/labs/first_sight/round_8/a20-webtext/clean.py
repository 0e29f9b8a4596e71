import re

# a menu line: words with separators and a colon at the end
MENU = re.compile(r"^(?:[\w&'-]+[ |/.]*)+:$")
TAG = re.compile(r"<[^>]{1,80}>")
SPACE = re.compile(r"[ \t]+")


def clean(page):
    lines = []
    for line in page.split("\n"):
        line = SPACE.sub(" ", TAG.sub(" ", line)).strip()
        if not line or MENU.match(line):
            continue
        lines.append(line)
    return "\n".join(lines)
