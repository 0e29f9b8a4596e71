"""The HTTP API against its own OpenAPI document, by schemathesis: the real app over a real hub that holds a
recorded hang."""

from __future__ import annotations

import contextlib
import json
import re
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from tests.labs.fuzz.targets.base import CAPTURES
from tests.labs.fuzz.targets.wire import a_digest, a_hub

__all__ = ["NEVER_ENDS", "a_live_hub", "document_of", "fuzzed"]

NEVER_ENDS = "/events"  # a stream: asked by tests of its own
_NO_PROCESS = 5_000_000  # added to a pid: above the kernel's highest, 2^22
_ROUND = 25  # examples of one route at a time, so that each gets its share


@contextlib.contextmanager
def a_live_hub() -> Iterator[Any]:
    """A hub that was told the journal of two ranks that hang, and whose job hub heard itself and another
    node.

    The pids are none that any process has: dumps and flame graphs find nobody.
    """
    from diag.engine.journal import JournalReader, segments
    from diag.model import Record

    with a_hub() as hub:
        records = list(JournalReader(segments(CAPTURES / "h200-live" / "loop-data-hang")))
        pids = {record.payload["placement"]["pid"] for record in records if "placement" in record.payload}
        pids |= {record.payload["pid"] for record in records if isinstance(record.payload.get("pid"), int)}
        for record in records:
            hub.engine.feed(
                Record(
                    record.source,
                    _moved(record.payload, pids),
                    record.rank,
                    record.host,
                    record.emitted,
                    record.at,
                )
            )
        hub.host, hub.address = "node-a", "127.0.0.1:9095"
        assert hub.cluster.member._try("self")
        other = a_digest()
        other["node"] |= {"node_rank": 1}  # else it would take this node's place
        hub.cluster.take_digest(other, "10.0.0.2")
        end = time.monotonic() + 20.0
        while len(hub.cluster.nodes()) < 2:  # the job hub's own thread takes it in
            assert time.monotonic() < end, "the digest of the other node was not taken in"
            time.sleep(0.01)
        yield hub


def _moved(payload: dict[str, Any], pids: set[int]) -> dict[str, Any]:
    """With other pids, also in the texts of /proc and of NCCL that name them."""
    names = "|".join(map(str, sorted(pids)))
    text = re.sub(
        rf"(?<![\d.])(?:{names})(?![\d.])",
        lambda found: str(int(found[0]) + _NO_PROCESS),
        json.dumps(payload),
    )
    moved: dict[str, Any] = json.loads(text)
    return moved


def document_of(hub: Any) -> tuple[Any, Any]:
    """The app, and its document as schemathesis reads it."""
    import schemathesis

    from diag.outputs.http.app import create_app

    app = create_app(hub)
    config = schemathesis.Config.from_dict(
        {"headers": {"Host": "127.0.0.1:9095", "Authorization": f"Bearer {hub.token}"}}
    )
    return app, schemathesis.openapi.from_asgi(
        "/openapi.json", app, config=config, headers={"Host": "127.0.0.1"}
    ).exclude(path=NEVER_ENDS)


def fuzzed(
    seconds: float, seed: int = 0, runs: int = 0, only: Callable[[str], bool] = lambda path: True
) -> tuple[int, dict[str, str]]:
    """Asks each route again and again, as its document says and otherwise, for so long. Executions, and
    faults by place."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded
    from schemathesis.checks import negative_data_rejection, not_a_server_error, positive_data_acceptance

    # A digest's inside is told in outline: what a node sends is between two hubs of one version, and readers
    # are tolerant of it.
    loose = [negative_data_rejection, positive_data_acceptance]

    counted, faults, round_ = 0, {}, 0  # type: ignore[var-annotated]
    end = time.monotonic() + seconds
    with a_live_hub() as hub:
        _, document = document_of(hub)
        operations = [result.ok() for result in document.get_all_operations()]
        operations = [one for one in operations if only(one.path)]
        while not round_ or (time.monotonic() < end and not (runs and round_ * _ROUND >= runs)):
            for operation in operations:
                for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                    if (
                        round_
                        and (mode.is_negative or not operation.query)
                        and not operation.query
                        and not operation.body
                    ):
                        continue  # it has nothing that could be another

                    @seeded(seed + round_)
                    @settings(
                        max_examples=min(runs or _ROUND, _ROUND),
                        database=None,
                        deadline=None,
                        phases=[Phase.generate],
                        suppress_health_check=list(HealthCheck),
                    )
                    @given(case=operation.as_strategy(generation_mode=mode))
                    def asked(case: Any) -> None:
                        nonlocal counted
                        counted += 1
                        if (
                            case.path == "/dump"
                            and isinstance(case.query, dict)
                            and isinstance(case.query.get("deadline"), (int, float))
                        ):
                            case.query["deadline"] = min(case.query["deadline"], 1.0)
                        began = time.process_time()
                        response = case.call()
                        # 503 and 504 are documented words (busy; not in time), held by
                        # status_code_conformance.
                        assert response.status_code < 500 or response.status_code in (503, 504), (
                            f"{response.status_code}: {response.text}"
                        )
                        case.validate_response(
                            response,
                            excluded_checks=[not_a_server_error, *(loose if case.path == "/digests" else [])],
                        )
                        took = time.process_time() - began
                        assert took < 2.0, f"{took:.1f} s of processor time"

                    try:
                        asked()
                    except (Exception, schemathesis.core.failures.FailureGroup) as error:
                        if "Unsatisfiable" in type(error).__name__:
                            continue  # every input is as its document says
                        where = f"{operation.method.upper()} {operation.path}: {_words(error)}"
                        faults.setdefault(where, "".join(traceback.format_exception(error))[-8000:])
                    if time.monotonic() > end and round_:
                        break
            round_ += 1
    return counted, faults


def _words(error: BaseException) -> str:
    inner = getattr(error, "exceptions", None)
    text = (
        " / ".join(sorted({f"{type(one).__name__}: {str(one).splitlines()[0]}" for one in inner}))
        if inner
        else f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    )
    return text[:300]
