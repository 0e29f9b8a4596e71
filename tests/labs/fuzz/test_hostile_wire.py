"""What another machine may send to hurt: to a hub, to a node, to Prometheus, in rules."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from diag.agent.cluster.roster import checked
from diag.cli.main import main
from diag.model import Record
from diag.model.observations import JobVerdict
from diag.outputs.prometheus import prometheus
from diag.sources import digest as digest_source
from diag.text.errors import DiagError
from tests.cluster_unit.facts import finding
from tests.labs.fuzz.api import a_live_hub
from tests.labs.fuzz.guard import _peak
from tests.labs.fuzz.targets.base import CONTROLS
from tests.labs.fuzz.targets.wire import a_digest, a_hub

# --- to a hub
# ------------------------------------------------------------------------------------------------------


def posted(hub: Any, body: bytes, **headers: str) -> httpx.Response:
    import asyncio

    from diag.outputs.http.app import create_app

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=create_app(hub), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9095") as client:
            return await client.post(
                "/digests", content=body, headers=headers | {"authorization": f"Bearer {hub.token}"}
            )

    return asyncio.run(asked())


def test_digest_that_unpacks_to_a_gigabyte_is_refused_at_64_mib() -> None:
    part = 32 << 20
    bomb = gzip.compress(b" " * part) * ((1 << 30) // part)
    single = gzip.compress(b" " * (65 << 20), 1)
    before = _peak()

    with a_hub() as hub:
        answers = [posted(hub, body, **{"content-encoding": "gzip"}) for body in (bomb, single)]

    assert [answer.status_code for answer in answers] == [422, 422]
    assert _peak() - before < 500 << 20


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"schema": NaN}',
        b'{"wall": ' + b"9" * 5001 + b"}",
        b"\0" * 1000,
        b'{"schema": "\xff"}',
        b"[]",
        b"null",
        b"",
        b'{"schema": "diag.digest/1"}',
        b'{"schema": "\\ud800", "node": {}}',
    ],
    ids=lambda body: repr(body[:16]),
)
def test_what_is_no_digest_is_refused_in_a_sentence(body: bytes) -> None:
    with a_hub() as hub:
        answer = posted(hub, body)

    assert answer.status_code == 422
    assert isinstance(answer.json()["detail"], str) and not CONTROLS & set(answer.json()["detail"])


ODD = [10**400, -1, 0.5, "x", None, [], {}, True, 2**70]


@pytest.mark.parametrize(
    "name",
    [
        "wall",
        "port",
        "node.node_rank",
        "node.nodes",
        "node.world_size",
        "node.run_id",
        "node.host",
        "node.every_seconds",
        "node.url",
        "node.rendezvous",
        "ranks",
        "frames",
        "ranks.0.placement",
        "ranks.0.placement.rank",
        "ranks.0.placement.pid",
    ],
)
def test_one_odd_digest_keeps_no_other_node_from_being_heard(name: str) -> None:
    with a_hub() as hub:
        for odd in ODD:
            document = json.loads(json.dumps({**a_digest(), "frames": {}}))
            document["node"]["run_id"] = "run-of-somebody"
            *way, last = [int(key) if key.isdigit() else key for key in name.split(".")]
            place = document
            for key in way:
                place = place[key]
            place[last] = odd

            answer = posted(hub, json.dumps(document).encode())

            assert answer.status_code in (200, 422), f"{odd!r}: {answer.text}"
        assert posted(hub, json.dumps(a_digest()).encode()).status_code == 200
        job_hub = hub.cluster.member.job_hub
        job_hub.reply("run-x", {})
        hub.cluster.nodes()
        assert not job_hub.broken
        for entry in job_hub.roster.hubs.values():
            assert checked(entry) == entry


@pytest.mark.parametrize(
    "roster",
    [
        [5],
        ["x"],
        [{}],
        [{"run_id": "r"}],
        {"a": 1},
        "abc",
        [[]],
        7,
        [None],
        [
            {
                "run_id": "r",
                "host": "h",
                "node_rank": "first",
                "url": "http://x",
                "nodes": 2,
                "world_size": 2,
                "rendezvous": "",
                "ranks": [],
            }
        ],
        [
            {
                "run_id": "r",
                "host": "h",
                "node_rank": 1,
                "url": ["x"],
                "nodes": 2,
                "world_size": 2,
                "rendezvous": "",
                "ranks": [],
            }
        ],
        [
            {
                "run_id": "r",
                "host": "h",
                "node_rank": 1,
                "url": "",
                "nodes": 2,
                "world_size": 2,
                "rendezvous": "",
                "ranks": [[0, 0, "x", 1]],
            }
        ],
    ],
)
def test_roster_that_is_none_is_a_failed_report_and_changes_nothing(roster: Any) -> None:
    answer = {
        "hub": "run-9",
        "over": False,
        "host": "gpu-0",
        "every": 5.0,
        "detail": 0,
        "version": 3,
        "roster_version": 2,
        "verdict": {},
    }
    with a_hub() as hub:
        before = hub.cluster.member._candidates()

        with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
            hub.cluster.member._hear({**answer, "roster": roster}, "http://10.0.0.9:9095")

        assert hub.cluster.member._candidates() == before and hub.cluster.member.roster == []


@pytest.mark.parametrize(
    "change", [{"every": 10**400}, {"every": "x"}, {"hub": None}, {"detail": []}, {"verdict": 5}]
)
def test_member_goes_on_after_an_answer_that_no_hub_gives(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from diag.agent.cluster.post import Exchange, Sender

    told = {
        "hub": "run-9",
        "over": False,
        "host": "gpu-0",
        "every": 5.0,
        "detail": 0,
        "version": 3,
        "roster_version": 2,
        "verdict": {},
    }
    monkeypatch.setattr(Sender, "send", lambda *words: Exchange({**told, **change}, 1, 1, None))
    with a_hub() as hub:
        hub.cluster.member._try("http://10.0.0.9:9095")  # raises nothing: its thread would end with it

        assert 0.5 <= hub.cluster.member._every <= 600.0


# --- to Prometheus
# ---------------------------------------------------------------------------------------------------

LABELS = (
    'a"b',
    "line\nforged_metric 1",
    'x"} 1\nforged_metric{a="',
    "back\\slash\\",
    "\x00\x1b[2J",
    "\ud800",
    "{}",
    "é\u202e",
)


@pytest.mark.parametrize("word", LABELS, ids=repr)
def test_word_in_a_label_forges_no_series(word: str) -> None:
    with a_live_hub() as hub:
        plain = {family.name for family in text_string_to_metric_families(exposed(hub))}
        hub.host = hub.job_id = hub.version = word
        for rank in hub.engine.job.ranks.values():
            rank.placement = replace(rank.placement, host=word)
        told = finding(word, subject=word, klass=word, cause=word)
        said = digest_source.verdict(JobVerdict(None, word, 2, 2, (told,)), 1.0)
        hub.engine.feed(
            Record(digest_source.VERDICT_SOURCE, json.loads(json.dumps(said)), at=hub.engine.now + 1.0)
        )
        hub.engine.advance(hub.engine.now + 5.0)
        assert word in {one.subject for one in hub.engine.active()}
        text = exposed(hub)

    families = list(text_string_to_metric_families(text))
    assert {family.name for family in families} <= plain | {"diag_finding_active", "diag_findings"}
    values = {value for family in families for sample in family.samples for value in sample.labels.values()}
    assert any(
        part in value
        for value in values
        for part in (word, word.encode("ascii", "backslashreplace").decode(), "?")
    )


def exposed(hub: Any) -> str:
    body, _ = prometheus.exposition(prometheus.families(hub), "")
    return body.decode()


# --- rules and manifests
# -----------------------------------------------------------------------------------------------

LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    "form",
    [
        LAUGHS,
        LAUGHS + "apiVersion: diag/v1\nid: x\nexamples: *a8\nmatch: *a8\n",
        "a: &a [*a]\n",
        "&a {<<: *a}\n",
        "[" * 200_000,
        "x: " + "9" * 100_000,
    ],
)
def test_rule_file_that_grows_is_refused_at_once(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.yaml").write_text(form)
    began, before = time.process_time(), _peak()

    assert main(["rules", "test", str(tmp_path / "one.yaml")]) == 10

    assert time.process_time() - began < 5 and _peak() - before < 300 << 20
    assert len(capsys.readouterr().out) < 20_000


@pytest.mark.parametrize("form", ["(a+)+x", "(a|a)*x", "(.*)*x", "(a?){1000}a{1000}x"])
def test_pattern_of_a_rule_that_explodes_elsewhere_is_quick_or_refused(form: str, tmp_path: Path) -> None:
    import yaml

    from diag.detectors import make_detectors
    from diag.detectors.precedence import PRECEDENCE
    from diag.detectors.rules.load import load, packaged
    from diag.engine.engine import Engine
    from diag.model import Record
    from diag.sources.parsers import PARSERS

    made = copy.deepcopy(packaged().by_id["missing-module"].model_dump(by_alias=True, mode="json"))
    made |= {"id": "of-a-stranger", "match": [{"literal": "aaaa", "regex": form}]}
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(made))
    began = time.process_time()

    with contextlib.suppress(DiagError):
        engine = Engine(PARSERS, make_detectors(load([tmp_path])), PRECEDENCE)
        engine.feed(Record("output", {"stream": "stdout", "lines": [["a" * 60_000, 0]] * 5}, 0, "", 1.0, 1.0))

    assert time.process_time() - began < 5
