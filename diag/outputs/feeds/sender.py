"""Feeds one event to the controllers that were asked for, in a process that ends with it, so that one that does not answer
holds up nothing. Reads its task from stdin, prints what became of it as JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from typing import Any

from diag.outputs.feeds.chosen import Chosen, chosen
from diag.outputs.feeds.feed import Environment, Told, telling
from diag.outputs.feeds.https import ask
from diag.text.sanitize import clean


def main() -> int:
    task = json.load(sys.stdin)
    found = chosen(" ".join(word for word, _ in task["addresses"]))
    json.dump(feed(task["event"], found, os.environ), sys.stdout)
    return 0


def feed(event: Mapping[str, Any], found: list[Chosen], environment: Environment) -> list[dict[str, Any]]:
    """To all of them at once. Those that have nothing to tell of it are left out of the answers."""
    if event["event"] == "progress":
        event = {**event, "job": job_of(event["run"])}
    answers: dict[str, Told] = {}

    def work(one: Chosen) -> None:
        try:
            payload = one.feed.payload(telling(event), one.options, environment)
            if payload is not None:
                answers[one.word] = one.feed.send(payload, one.options, environment)
        except Exception as error:  # of a library, or of an answer that nobody foresaw
            answers[one.word] = Told(False, f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(one,), name=one.word) for one in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [
        {"name": one.feed.name, "accepted": told.accepted, "text": clean(told.text), "again": told.again}
        for one in found
        if (told := answers.get(one.word)) is not None
    ]


def job_of(run: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the hub says of the job as a whole; None where it serves no HTTP, or has gone."""
    if not run.get("url"):
        return None
    token, ca = run.get("token") or "", run.get("tls_ca")
    answer = ask("GET", f"{run['url']}/findings", token=token, ca=ca, by_name=ca is None)
    found = answer.body.get("job") if answer.accepted and isinstance(answer.body, dict) else None
    return found if isinstance(found, dict) else None


if __name__ == "__main__":
    sys.exit(main())
