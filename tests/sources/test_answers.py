"""Ways through a round of a process that answers requests on which it gives no answer, by its text; and none where each round
has one, or where there was no request."""

from __future__ import annotations

import pytest

from diag.model.observations import Answer
from diag.sources.stacks.answers import answer_of
from diag.sources.stacks.origins import parsed
from tests.programs import line_of

PATH = "/srv/serve.py"


def found(text: str, mark: str = "asks") -> Answer | None:
    program = parsed(PATH, text)
    assert program is not None
    return answer_of(program, line_of(text, mark))


def past(text: str) -> list[tuple[str, str]]:
    answer = found(text)
    return [(one.kind, one.text) for one in answer.past] if answer is not None else []


FILTER = """
for line in sys.stdin:  # asks
    line = line.rstrip()
    if not line:
        continue
    sys.stdout.write(norm(line))
    sys.stdout.flush()
"""
HANDLER = """
def serve(conn):
    while True:
        query = conn.recv()  # asks
        if query is None:
            break
        try:
            answer = look_up(query)
        except KeyError as error:
            log.warning("%s", error)
            continue
        conn.send(answer)
"""
SKIPPED = """
def serve(conn):
    while True:
        query = conn.recv()  # asks
        if query["kind"] == "score":
            conn.send(score(query))
        elif query["kind"] == "stop":
            return
"""
CALLED = """
class Session:
    def run(self):
        while True:
            self.handle(self.sock.recv(4096))  # asks

    def handle(self, request):
        if len(request) > LIMIT:
            return
        self.give(request)

    def give(self, request):
        self.sock.sendall(request)
"""
OUTER = """
def serve(sock):
    while True:
        data = b""
        while len(data) < 4:
            data += sock.recv(4 - len(data))  # asks
        if data != b"ping":
            sock.sendall(answer(data))
"""


@pytest.mark.parametrize(
    ("text", "answer", "ways"),
    (
        (FILTER, "sys.stdout.write(norm(line))", [("if", "if not line:")]),
        (HANDLER, "conn.send(answer)", [("except", "except KeyError as error:")]),
        (SKIPPED, "conn.send(score(query))", [("else", 'if query["kind"] == "score":')]),
        (CALLED, "self.sock.sendall(request)", [("if", "if len(request) > LIMIT:")]),
        (OUTER, "sock.sendall(answer(data))", [("else", 'if data != b"ping":')]),
    ),
)
def test_way_round_without_an_answer_is_found(text: str, answer: str, ways: list[tuple[str, str]]) -> None:
    told = found(text)

    assert told is not None and told.text == answer
    assert past(text) == ways


EACH = """
def serve(conn):
    while True:
        query = conn.recv()  # asks
        if query is None:
            return
        try:
            answer = look_up(query)
        except KeyError:
            conn.send(None)
            continue
        if answer.long:
            log.write("long")
        conn.send(answer)
"""
RAISES = """
def serve(conn):
    while True:
        query = conn.recv()  # asks
        if not query:
            raise SystemExit("gone")
        for row in query:
            conn.send(row)
"""
NO_REQUEST = """
def serve(todo, done):
    while True:
        try:
            one = todo.get(timeout=1)  # asks
        except queue.Empty:
            continue
        done.put(one)
"""
BEFORE = """
def serve(conn):
    while True:
        if stopping:
            continue
        query = conn.recv()  # asks
        conn.send(query)
"""
SILENT = """
def take(conn):
    while True:
        row = conn.recv()  # asks
        if row:
            rows.append(row)
        print(row, file=sys.stderr)
"""


@pytest.mark.parametrize("text", (EACH, RAISES, NO_REQUEST, BEFORE, SILENT))
def test_nothing_is_found_where_each_request_has_an_answer_or_none_is_given(text: str) -> None:
    assert found(text) is None


def test_loop_that_is_too_long_to_tell_has_none() -> None:
    called = "".join(f"    step_{at}(row)\n" for at in range(60))
    functions = "".join(
        f"def step_{at}(row):\n" + called.replace(f"step_{at}(", "plain(") for at in range(60)
    )
    text = f"{functions}\nfor row in rows:  # asks\n{called}    if row:\n        print(row)\n"

    assert found(text) is None
    assert found("for row in rows:  # asks\n    if row:\n        print(row)\n") is not None


def test_expression_that_is_too_deep_has_none() -> None:
    deep = "for row in rows:  # asks\n    if row:\n        print(" + "+".join(["row"] * 5000) + ")\n"
    program = parsed(PATH, deep)

    assert program is None or answer_of(program, 1) is None
