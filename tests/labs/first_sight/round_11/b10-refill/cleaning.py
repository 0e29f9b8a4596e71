"""Cleaning and cutting of raw documents; runs in worker processes, so it stays free of torch."""
import re
import signal

SECONDS_PER_DOC = 4.0
LIST = re.compile(r"^(?:[a-z]+,? ?)+;$")
WORD = re.compile(r"[a-z]+")


def clean(doc):
    # no single document may hold up the others
    signal.setitimer(signal.ITIMER_REAL, SECONDS_PER_DOC)
    try:
        if LIST.match(doc):
            return []
        return [hash_word(w) for w in WORD.findall(doc)]
    except TimeoutError:
        return []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def hash_word(w):
    h = 7
    for c in w:
        h = (h * 31 + ord(c)) % 997
    return h


def give_up(signum, frame):
    raise TimeoutError
