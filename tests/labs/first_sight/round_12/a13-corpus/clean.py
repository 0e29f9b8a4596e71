import re
import resource
from multiprocessing import Pool

SENTENCE = re.compile(r"^(?:[\w']+[ ,;]?)+[.!?]$")


def _limits(cpu):
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))


def clean(doc):
    good = [line for line in doc.split("\n") if SENTENCE.match(line)]
    return " ".join(good)


def clean_all(docs, workers=2):
    # a document must not eat the node
    with Pool(workers, initializer=_limits, initargs=(6,)) as pool:
        done = []
        for text in pool.imap(clean, docs, chunksize=4):
            done.append(text)
        return done
