"""Of nodes that fall silent: when that is a failed node, and when the job is just over. Digests as a roster
tells them."""

from __future__ import annotations

from typing import Any

from diag.agent.cluster.roster import digest_of
from diag.detectors.cluster import make_job_detectors
from diag.detectors.precedence import PRECEDENCE
from diag.engine.engine import Engine
from diag.model import Record
from diag.sources import digest as digest_source
from diag.sources.parsers import PARSERS

BEGAN = 1000.0


def digest(number: int, *, exit_code: int | None = None, returncode: int | None = None) -> dict[str, Any]:
    entry = {
        "run_id": f"run{number}",
        "host": f"node{number}",
        "node_rank": number,
        "url": f"http://10.0.0.{number}:9095",
        "gone": False,
        "nodes": 3,
        "rendezvous": "node0:29500",
        "world_size": 3,
        "ranks": [[number, 0, 100 + number, 7]],
    }
    document = digest_of(entry, 5.0)
    document["node"] |= {"phase": "training", "seq": 1, "returncode": returncode}
    if exit_code is not None:
        exited = {
            "rank": number,
            "pid": 100 + number,
            "exit_code": exit_code,
            "signal": None,
            "ended": 0.0,
            "how": "zombie",
        }
        document["ranks"][0] |= {"alive": False, "exited": {**exited, "last": []}}
    return document


def judged(own: dict[str, Any], seconds: int = 60) -> list[tuple[str, str]]:
    """Node 0 goes on reporting this; nodes 1 and 2 were heard once, and then no connection to them was
    answered."""
    engine = Engine(PARSERS, make_job_detectors(), PRECEDENCE)
    for number in (1, 2):
        engine.feed(
            Record(digest_source.SOURCE, digest(number), host=f"node{number}", at=BEGAN + number / 10)
        )
    for second in range(1, seconds, 3):
        own["node"]["seq"] = second
        engine.feed(Record(digest_source.SOURCE, own, host="node0", at=BEGAN + second))
        if second > 30:
            for number in (1, 2):
                told = digest_source.probed(f"run{number}", f"node{number}", "timeout", 3.0)
                engine.feed(Record(digest_source.SOURCE, told, host="node0", at=BEGAN + second + 0.5))
    return [(finding.id, finding.cause) for finding in engine.active() if finding.id == "node-failure"]


def test_node_that_hears_of_no_other_while_its_rank_stands_still_is_cut_off() -> None:
    assert judged(digest(0)) == [("node-failure", "this_node_cut_off")]


def test_nothing_is_cut_off_where_a_rank_has_come_to_its_end() -> None:
    """Between the last step and the end of torchrun nothing moves, for a quarter of a minute on a busy
    machine."""
    assert judged(digest(0, exit_code=0)) == []


def test_node_whose_own_command_has_ended_says_nothing_of_the_silence_of_others() -> None:
    assert judged(digest(0, exit_code=0, returncode=0)) == []
    assert judged(digest(0, returncode=0)) == []
