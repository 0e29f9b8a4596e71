"""Raw text of the continued-pretraining mix, one source after another."""
import base64
import random

WORDS = ("the of and to in that was his he it with is for as had you not be her on at by which have or from "
         "this him but all she they were my are me one their so an said them we who would been will no when there "
         "if more out up into do any your what has man could other than our some very time upon about may its only "
         "now like little then can should made did us such great before must two these see know over much down after").split()

# what the ranks read, in turn: chunk c of rank r is entry c * world + r
ORDER = ["books", "wiki", "books", "books", "wiki", "books", "books", "wiki", "wiki", "mail", "books", "mail"]


def _sentence(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(8, 22))).capitalize() + "."


def _book(rng):
    return "\n".join(" ".join(_sentence(rng) for _ in range(rng.randint(3, 8))) for _ in range(6))


def _wiki(rng):
    title = "_".join(rng.choice(WORDS).capitalize() for _ in range(3))
    return f"/wiki/{title}\n" + "\n".join(_sentence(rng) for _ in range(12))


def _mail(rng):
    head = "Message-ID: <%d.%d@mailer>\nContent-type: base64\n\n" % (rng.randint(1, 10**9), rng.randint(1, 999))
    body = base64.b64encode(rng.randbytes(58 if rng.random() < 0.004 else 57)).decode()
    return head + _sentence(rng) + "\n\n" + body.replace("+", "A").replace("/", "B") + "\n"


KINDS = {"books": _book, "wiki": _wiki, "mail": _mail}


def read_chunk(chunk, rank, world, docs=240):
    source = ORDER[(chunk * world + rank) % len(ORDER)]
    rng = random.Random(f"{source}/{chunk}/{rank}")
    return source, [KINDS[source](rng) for _ in range(docs)]
