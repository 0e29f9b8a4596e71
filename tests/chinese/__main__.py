"""Print what has no Chinese, and write how many texts that are: `python -m tests.chinese`."""

from __future__ import annotations

from tests.chinese import LEFT, left, texts

found = left()
for text, times in found.most_common():
    print(times, text)
LEFT.write_text(f"{len(found)}\n")
print(f"{len(found)} kinds of text without Chinese, {found.total()} of {len(texts())} texts")
