"""Variables in another process's memory: real interpreters, odd values, secrets, and what is no process any more."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from typing import Any

import pytest

from diag.agent.samplers.rank_variables import choose
from diag.model import Record
from diag.model.observations import SourceFailed, SourceWorks, Unparsed, VariablesRead
from diag.sources.stacks import variables
from diag.sources.stacks.remote_stack import RemoteStacks
from tests.inject.targets import Target, plain_env
from tests.sources.remote_stacks import each_python

# Run as a file of the program's own would be: `python -c` has none.
HEAD = """
import sys, types, pathlib, datetime, threading, enum, collections, queue
class Holds:
    def __init__(self, **named): self.__dict__.update(named)
class Slots:
    __slots__ = ("size", "unset")
    def __init__(self): self.size = 3
class Colour(enum.Enum): RED = "red"
class Level(enum.IntEnum): HIGH = 7
"""
END = "print('ready', flush=True); sys.stdin.read()"


def running(body: str, *arguments: str) -> str:
    """Code that waits in `waits`, which has this body; it lies in a file of its own, as far as it knows."""
    text = (
        HEAD
        + "def waits(given, other=None, *, only=5):\n"
        + "".join(f"    {line}\n" for line in body.splitlines())
    )
    text += f"    {END}\nwaits({', '.join(arguments) or '1'})\n"
    return f"exec(compile({text!r}, '/srv/job/train.py', 'exec'))"


def read(pid: int, deadline: float = 20.0) -> Any:
    with contextlib.closing(RemoteStacks()) as stacks:
        return stacks.variables(pid, choose, variables.REDACT, deadline)


def values(payload: Any, function: str = "waits") -> dict[str, str]:
    assert "threads" in payload, payload
    json.dumps(payload)
    frames = [frame for thread in payload["threads"] for frame in thread["frames"]]
    return dict(next(frame["values"] for frame in frames if frame["function"] == function))


def of(body: str, *arguments: str, python: str = sys.executable) -> dict[str, str]:
    with Target(running(body, *arguments), plain_env(), python=python) as rank:
        return values(read(rank.pid))


ODD = {
    "'it\\'s'": '"it\'s"', "'Größe 线程 \\U0001f600'": "'Größe 线程 \U0001f600'", "''": "''", "'a\\x1b[31m\\n'": "'a\\x1b[31m\\n'",
    "'x' * 10_000_000": f"'{'x' * 60}'... (10000000)", "0": "0", "-5": "-5", "2**30": "1073741824", "-2**70": str(-(2**70)),
    "10**400": "an int beyond 240 bits", "True": "True", "False": "False", "None": "None", "1.5": "1.5", "float('nan')": "nan",
    "-float('inf')": "-inf", "b'abc'": "b'abc'", "b'\\x00\\xff' * 9": "<bytes of 18>", "bytearray(b'ab')": "b'ab'", "b''": "b''",
    "[]": "[]", "[1, 'a', None]": "[1, 'a', None]", "(1,)": "(1,)", "list(range(1000))": "[0, 1, 2, 3, 4, 5, ... 1000 items]",
    "[[1], [2]]": "<list of 2 list>", "{}": "{}", "{'a': 1, 2: 'b'}": "{'a': 1, 2: 'b'}", "set()": "set()", "{3}": "{3}",
    "collections.OrderedDict(a=1)": "{'a': 1}", "pathlib.Path('/runs') / '13' / 'ready'": "PosixPath('/runs/13/ready')",
    "pathlib.Path('a//b')": "PosixPath('a/b')", "datetime.timedelta(minutes=30)": "timedelta(seconds=1800)",
    "Colour.RED": "Colour.RED", "Level.HIGH": "Level(7)", "Holds(a=1, b=[], c=[])": "<Holds a=1>", "Slots()": "<Slots>",
    "threading.Event()": "<Event _flag=False>", "object()": "<object>", "iter([])": "<list_iterator>",
    "collections.deque([1, 2])": "<deque of 2>", "(lambda: given)()": "1",
    "__import__('re').compile('(a+)+b')": "re.compile('(a+)+b')",
}  # fmt: skip


@each_python
def test_value_is_shown_as_its_repr_would_be(python: str) -> None:
    shown = of("\n".join(f"v{at} = {code}" for at, code in enumerate(ODD)), python=python)

    path = shown.pop("v31").replace("a//b", "a/b")  # from 3.12 on a path is kept as it was given
    assert {**shown, "v31": path} | {"given": "1", "other": "None", "only": "5"} == {
        **{f"v{at}": text for at, text in enumerate(ODD.values())}, "given": "1", "other": "None", "only": "5", 
    }  # fmt: skip


@each_python
def test_attributes_keys_and_globals_that_the_function_names_are_told(python: str) -> None:
    body = "\n".join(
        (
            "global LIMIT",
            "LIMIT = None",
            "inner = Holds(step=7, other=[1])",
            "given.run_dir, given.inner.step, LIMIT, given.done.is_set()",
            "table = {'out': 'runs/a', 'lr': 0.1}",
            "table['out']",
            "shared = 3",
            "def within(): return shared",
        )
    )
    made = "Holds(run_dir='runs/b', inner=Holds(step=7, far=[1]), done=threading.Event(), rows=[1])"
    shown = of(body, made, python=python)

    assert shown["given.run_dir"] == "'runs/b'" and shown["given.inner.step"] == "7"
    assert shown["given.done"] == "<Event _flag=False>" and "given.rows" not in shown
    assert shown["table['out']"] == "'runs/a'" and "table['lr']" not in shown
    assert (shown["LIMIT"], shown["shared"]) == ("None", "3")
    assert not {"within", "sys", "Holds", "threading"} & shown.keys()


@each_python
def test_table_of_settings_that_its_text_does_not_show_whole_is_told_by_entries(python: str) -> None:
    body = "\n".join(
        (
            "cfg = {'pipeline_rank': 2, 'num_layers': 24, 'hidden_size': 192, 'api_key': 'abc', 'tie_embeddings': False}",
            "rows = {f'decoder_layer_number_{at}': [at] for at in range(9)}",
            "names = {f'shard number {at} of the data': at for at in range(9)}",
        )
    )
    shown = of(body, python=python)

    assert shown["cfg"].endswith("... 5 items}") and shown["cfg['tie_embeddings']"] == "False"
    assert shown["cfg['api_key']"] == "***"
    assert not [name for name in shown if name.startswith(("rows[", "names["))]


@each_python
def test_arguments_of_the_call_that_it_is_in_are_told(python: str) -> None:
    body = "ready = threading.Event()\nthreading.Timer(0.1, print, ('ready',), {'flush': True}).start()\nready.wait(5000)"
    with Target(running(body), plain_env(), python=python) as rank:
        payload = read(rank.pid)

    frames = [frame for thread in payload["threads"] for frame in thread["frames"] if frame["called"]]
    assert ["Event.wait", {"timeout": "5000"}] in [
        [frame["function"], dict(frame["values"])] for frame in frames
    ]
    assert all(not frame["file"].startswith("/srv") for frame in frames)


SECRET = "s3cretVALUE7"
SECRETS = (
    f"token = '{SECRET}'", f"password = '{SECRET}'", f"key = '{SECRET}'", f"api_key = b'{SECRET}'", f"auth = ['{SECRET}']",
    f"url = 'https://me:{SECRET}@host/a'", f"line = 'HF_TOKEN={SECRET}'", f"argv = ['--hub_token', '{SECRET}']",
    f"header = {{'Authorization': 'Bearer {SECRET}'}}", f"config = {{'api_key': '{SECRET}', 'lr': 1}}",
    f"pair = ('password', '{SECRET}')", f"client = Holds(secret='{SECRET}', name='x')",
    f"deep = Holds(api_token='{SECRET}')\ndeep.api_token",
    f"table = {{'db_password': '{SECRET}'}}\ntable['db_password']", f"place = pathlib.Path('/x?access_token={SECRET}')",
    f"given = 'hf_{SECRET}{'a' * 22}'", f"digest = '{SECRET}9f86d081884c7d659a2f'", f"env = {{b'HF_TOKEN': b'{SECRET}'}}",
    f"given = {{name: '{SECRET}' for name in 'HOME USER MINE B C_1 D E F'.split()}}",
    f"class Args: pass\nargs = Args()\nargs.hub_token = '{SECRET}'\nargs.lr = 1", f"global WANDB_API_KEY\nWANDB_API_KEY = '{SECRET}'",
)  # fmt: skip


def test_no_secret_leaves_the_process() -> None:
    for body in SECRETS:
        with Target(running(body), plain_env()) as rank:
            payload = read(rank.pid)
        assert values(payload) and SECRET not in json.dumps(payload), body


def test_names_and_texts_that_only_look_alike_are_shown() -> None:
    shown = of(
        "max_tokens = 128\ntokenizer = 'bpe'\nnum_key_value_heads = 8\npath = 'runs/0213-15/step_00000400'\ntoken = None"
    )

    assert (
        shown["max_tokens"] == "128" and shown["tokenizer"] == "'bpe'" and shown["num_key_value_heads"] == "8"
    )
    assert shown["path"] == "'runs/0213-15/step_00000400'" and shown["token"] == "None"


# Frames, objects and lists that come and go all the time.
BUSY = """
def inner(items, text):
    held = {text: [len(items)], 'x': Holds(a=len(text))}
    return [held[text], str(held)]
print('ready', flush=True)
number = 0
while True:
    number += 1
    kept = [inner([number] * (number % 50), 'x' * (number % 99)) for _ in range(3)]
    del kept
"""


@each_python
def test_process_that_runs_is_read_or_not_and_runs_on(python: str) -> None:
    text = HEAD + BUSY
    with Target(f"exec(compile({text!r}, '/srv/job/busy.py', 'exec'))", plain_env(), python=python) as rank:
        numbers = []
        for _ in range(300):
            payload = read(rank.pid, 5.0)
            if "threads" in payload:
                json.dumps(payload)
                numbers += [
                    int(value)
                    for thread in payload["threads"]
                    for frame in thread["frames"]
                    for name, value in frame["values"]
                    if name == "number" and value.isdecimal()
                ]
            else:
                assert payload["failed"] == "torn"
        assert numbers and rank.process.poll() is None
    assert sum(one <= after for one, after in itertools.pairwise(numbers)) >= len(numbers) - 10


def test_process_that_is_gone_or_no_python_is_said() -> None:
    with Target(running("pass"), plain_env()) as rank:
        pid = rank.pid
    assert read(pid)["failed"] == "gone"
    assert read(1)["failed"] in ("unsupported", "denied")


def test_record_becomes_facts() -> None:
    frame = {
        "function": "f",
        "file": "/srv/a.py",
        "line": 3,
        "called": False,
        "values": [["n", "1"], ["token", "x"]],
    }
    record = Record(
        variables.SOURCE, {"pid": 7, "threads": [{"id": 7, "name": "MainThread", "frames": [frame]}]}, 1
    )
    works, fact = variables.parse(record)

    assert isinstance(works, SourceWorks) and isinstance(fact, VariablesRead)
    assert [(one.name, one.text) for one in fact.frames[0].variables] == [("n", "1"), ("token", "***")]
    [failed] = variables.parse(Record(variables.SOURCE, {"pid": 7, "failed": "denied", "detail": "x"}, 1))
    assert isinstance(failed, SourceFailed) and failed.reason.startswith("diag is not permitted")


@pytest.mark.parametrize(
    "payload", [None, [], {}, {"pid": "7"}, {"pid": 7}, {"pid": 7, "threads": [3]}, {"pid": 7, "threads": [{"id": 1}]},
                {"pid": 7, "threads": [{"id": 1, "frames": [{"values": [1]}]}]}]
)  # fmt: skip
def test_torn_record_is_unparsed(payload: Any) -> None:
    assert any(isinstance(fact, Unparsed) for fact in variables.parse(Record(variables.SOURCE, payload, 1)))
