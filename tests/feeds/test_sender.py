"""One event, fed to those that were chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diag.outputs.feeds import sender
from diag.outputs.feeds.chosen import chosen
from tests.feeds.apiserver import TOKEN, Cluster
from tests.feeds.facts import GPU, HANG, RUN, change


def event(*changes: dict[str, Any]) -> dict[str, Any]:
    found = [one["finding"] for one in changes]
    return {"event": "finding", "changes": list(changes), "open": found, "since": 1000.5, "run": RUN}


def test_secrets_are_in_nothing_that_is_sent(kube: tuple[Cluster, dict[str, str]], account: Path) -> None:
    secret = change(
        HANG, summary="rank 3 waits for https://me:abcd1234@host/x", advice="api_key=abcd1234efgh"
    )

    sender.feed(event(secret), chosen(f"kubernetes:account={account}"), kube[1])

    sent = repr((kube[0].events, kube[0].conditions))
    assert "rank 3 waits for https://me:***@host" in sent
    assert "abcd1234" not in sent and TOKEN not in sent


def test_one_that_fails_holds_up_no_other(kube: tuple[Cluster, dict[str, str]], account: Path) -> None:
    found = chosen(f"nvrx:dir={account} kubernetes:account={account}")
    broken = {**change(GPU), "at": "no time"}

    answers = sender.feed(event(broken), found, {**kube[1], "SLURM_JOB_ID": "1"})

    assert [(one["name"], one["accepted"]) for one in answers] == [("nvrx", True), ("kubernetes", False)]
    assert answers[1]["text"].startswith("TypeError: ")


def test_who_has_nothing_to_tell_gives_no_answer(kube: tuple[Cluster, dict[str, str]]) -> None:
    assert sender.feed(event(change(HANG)), chosen("trainjob nvsentinel nvrx:dir=/shared"), kube[1]) == []


def test_progress_is_asked_of_the_hub_with_its_token(
    kube: tuple[Cluster, dict[str, str]], monkeypatch: Any
) -> None:
    asked: list[tuple[str, str]] = []

    def ask(method: str, url: str, *, token: str, ca: str | None, by_name: bool) -> Any:
        asked.append((url, token))
        assert ca is None and by_name
        job = {"state": "running", "iteration": 1, "total_iterations": 4, "steps": None, "at": 1000.0}
        return sender_response({"job": job})

    monkeypatch.setattr(sender, "ask", ask)
    run = {**RUN, "url": "http://127.0.0.1:9095", "token": "t"}

    (answer,) = sender.feed({"event": "progress", "run": run}, chosen("trainjob"), kube[1])

    assert answer["accepted"] and asked == [("http://127.0.0.1:9095/findings", "t")]
    assert kube[0].statuses[0]["progressPercentage"] == 25


def test_without_a_page_no_progress_is_told(kube: tuple[Cluster, dict[str, str]]) -> None:
    assert sender.feed({"event": "progress", "run": RUN}, chosen("trainjob"), kube[1]) == []


def sender_response(body: Any) -> Any:
    from diag.outputs.feeds.https import Response

    return Response(200, body, "")
