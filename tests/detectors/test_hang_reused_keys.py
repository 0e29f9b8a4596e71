"""A barrier of one's own over a store whose key is the same in each round; silence where it is another one each time, or is
set back."""

from __future__ import annotations

from pathlib import Path

import pytest

from diag.model import Finding
from diag.model.observations.waits import ProcessWaits, ThreadWait, Wait, WaitsRead
from tests.detectors.test_hang import steady
from tests.detectors.test_hang_program import read
from tests.facts import pid_of
from tests.programs import line_of

TEXT = """
class Gate:
    def wait(self, place, world=3):
        key = f"gate/{place}"
        self.store.add(key, 1)
        while self.store.add(key, 0) != world:
            time.sleep(0.1)  # wait

    def leave(self):
        pass


def train(gate, epochs):
    for epoch in range(epochs):
        step(epoch)
        gate.wait("validate")  # train


train(Gate(), 9)  # top
"""


def told(tmp_path: Path, text: str = TEXT, function: str = "Gate.wait") -> Finding:
    path = tmp_path / "train.py"
    path.write_text(text)
    lines = [
        f"<module> {path}:{line_of(text, 'top')}",
        f"train {path}:{line_of(text, 'train')}",
        f"{function} {path}:{line_of(text, 'wait')}",
    ]
    stacks = dict.fromkeys(range(2), lines)
    story = steady()
    story.still(30.0, stacks)
    for rank in range(2):
        read(story, path, rank, lines)
        thread = ThreadWait(pid_of(rank), "MainThread", "S", "hrtimer_nanosleep", Wait("sleep"), same=True)
        process = ProcessWaits(pid_of(rank), 1, "python", (thread,))
        story.tell(WaitsRead(rank, pid_of(rank), story.now, (process,)))
    story.still(30.0, stacks)
    return story.the("held-up")


def test_key_that_is_the_same_in_each_round_is_named(tmp_path: Path) -> None:
    found = told(tmp_path)

    assert found.cause == "polls"
    assert "place is 'validate' in each round of `for epoch in range(epochs):`" in found.summary
    assert "the same counter each time" in found.summary
    assert found.advice.startswith("As far as the text shows, the counter of that key is not set back")


def test_key_that_is_a_text_of_its_own_is_named_too(tmp_path: Path) -> None:
    text = TEXT.replace("self.store.add(key, 0)", 'self.store.add("gate", 0)')

    assert "its key is 'gate' in each round of" in told(tmp_path, text).summary


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('gate.wait("validate")', 'gate.wait(f"validate-{epoch}")'),
        ('gate.wait("validate")', "gate.wait(epoch)"),
        ("!= world", "< world"),
        (
            "    for epoch in range(epochs):\n        step(epoch)\n    ",
            "    if epochs:\n        step(9)\n    ",
        ),
        ("        pass", "        self.store.delete_key(key)"),
        ("        pass", "        self.store.set(key, b'0')"),
        ("        pass", "        self.store.add(key, -3)"),
    ],
)
def test_key_of_each_round_and_one_that_is_set_back_are_not_named(tmp_path: Path, old: str, new: str) -> None:
    assert old in TEXT
    found = told(tmp_path, TEXT.replace(old, new))

    assert "the same counter" not in found.summary and "not set back" not in found.advice


NAMED = """
def wait(cfg):
    path = f"cache/{fingerprint(cfg)}.npy"
    while not os.path.exists(path):
        time.sleep(0.1)  # wait


def fingerprint(cfg):
    return hash(cfg) % 1000


def train(gate, epochs):
    wait("validate")  # train


train(Gate(), 9)  # top
"""


def test_name_that_is_made_of_a_hash_is_told_as_another_one_in_each_process(tmp_path: Path) -> None:
    found = told(tmp_path, NAMED, "wait")

    assert "hash() and id() come to another number in each process" in found.summary
    assert found.advice.startswith("Use a digest that is the same everywhere")


def test_name_that_is_made_of_what_all_have_is_not(tmp_path: Path) -> None:
    found = told(tmp_path, NAMED.replace("hash(cfg) % 1000", "zlib.crc32(cfg)"), "wait")

    assert "hash()" not in found.summary and "digest" not in found.advice
