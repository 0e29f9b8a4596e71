#!/usr/bin/env python3
"""Line oriented text normaliser (NFKC, digits, whitespace, optional casing).

Reads text on stdin, writes normalised text on stdout.  Used by the ingest
cron as well, so keep it free of any dependency.
"""
import argparse
import re
import sys
import unicodedata

DIGITS = re.compile(r"\d+")
SPACE = re.compile(r"\s+")


def normalise(text, lower):
    text = unicodedata.normalize("NFKC", text)
    text = DIGITS.sub("0", text)
    text = SPACE.sub(" ", text).strip()
    return text.lower() if lower else text


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--lower", action="store_true")
    args = ap.parse_args()
    for line in sys.stdin:
        line = line.rstrip("\n")
        if not line.strip():
            continue
        sys.stdout.write(normalise(line, args.lower) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
