"""The HTTP API does what its OpenAPI document says, whatever it is asked: a few examples a route here, more
by `--only http`."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("schemathesis", reason="needs schemathesis (make test installs it)")

from diag.outputs.http import app
from tests.labs.fuzz.api import NEVER_ENDS, a_live_hub, document_of, fuzzed

SLOW = "/dump"  # looks at processes: half a second each time


def test_every_route_answers_as_its_document_says() -> None:
    executions, faults = fuzzed(0.0, seed=3, runs=8, only=lambda path: path != SLOW)

    assert executions > 60
    assert faults == {}, "\n\n".join(faults.values())


def test_dump_answers_as_its_document_says() -> None:
    executions, faults = fuzzed(0.0, seed=3, runs=2, only=lambda path: path == SLOW)

    assert executions >= 2
    assert faults == {}, "\n\n".join(faults.values())


def test_broken_route_and_an_answer_of_another_shape_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*words: Any) -> Any:
        raise KeyError("planted")

    monkeypatch.setattr(app, "ranks_json", breaks)
    monkeypatch.setattr(app, "report", lambda engine: {"schema": "diag.report/1"})

    _, faults = fuzzed(0.0, runs=1, only=lambda path: path in ("/ranks", "/findings"))

    assert [where for where in faults if "GET /ranks" in where]
    assert [where for where in faults if "GET /findings" in where]


def test_hub_that_is_asked_holds_what_was_recorded_and_another_node() -> None:
    with a_live_hub() as hub:
        found = {finding.id for finding in (*hub.engine.active(), *hub.engine.withheld.values())}
        assert found & {"hang", "held-up"}
        assert len(hub.engine.job.ranks) == 2 and len(hub.cluster.nodes()) == 2
        app, document = document_of(hub)

        described = set(app.openapi()["paths"])
        asked = {result.ok().path for result in document.get_all_operations()}

    assert asked == described - {NEVER_ENDS}
    assert {route.path for route in app.routes if getattr(route, "include_in_schema", False)} == described


def test_document_names_the_type_of_every_answer_and_the_form_of_every_body() -> None:
    with a_live_hub() as hub:
        paths = document_of(hub)[0].openapi()["paths"]

    for path, methods in paths.items():
        for method, operation in methods.items():
            for status, answer in operation["responses"].items():
                has_no_body = status == "304"
                assert answer.get("content") or has_no_body, f"{method} {path} {status} has no type"
                assert "HTTPValidationError" not in str(answer), (
                    f"{method} {path} {status}: errors are one sentence in `detail`"
                )
            # POST /dump and POST /ranks/{rank}/flame are asked by their query alone, as GET is.
            assert path != "/digests" or operation["requestBody"]["content"]["application/json"]["schema"]
