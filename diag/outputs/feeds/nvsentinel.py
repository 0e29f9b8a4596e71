"""NVSentinel: a HealthEvent of this node for each finding that is about the node or its GPUs, to the platform connector's
socket.

What a job or its program did wrong is no fault of the node, and is not sent. STORE_ONLY unless asked otherwise: it is
kept and exported, and no node is cordoned for it. The message is written here by its published numbers
(data-models/protobufs/health_event.proto of NVSentinel 1.31): the library protobuf is not needed, only gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diag.outputs.feeds.account import is_certain
from diag.outputs.feeds.feed import (
    Change,
    Environment,
    Feed,
    Options,
    Telling,
    Told,
    camel,
    cut,
    is_replaced,
    of_this_node,
    sentence,
)

INSTALL = "pip install 'diag[nvsentinel]'"
METHOD = "/datamodels.PlatformConnector/HealthEventOccurredV1"
_SOCKET = "/var/run/nvsentinel.sock"  # of its Helm chart
_SECONDS = 15.0
_STRATEGIES = {"EXECUTE_REMEDIATION": 1, "STORE_ONLY": 2}
_ACTIONS = {"NONE": 0, "CONTACT_SUPPORT": 5}
_MESSAGE_BYTES = 1024  # ours: NVSentinel also puts it into a node condition
# By how the id of a finding begins; of the rest the node as a whole.
_COMPONENTS = {"GPU": ("gpu-", "ecc-", "nvlink-", "thermal-", "power-"), "NIC": ("ib-",)}


def lacking(options: Options, environment: Environment) -> str:
    if (strategy := _strategy(options)) not in _STRATEGIES:
        return f"the strategy {strategy} is none: {' or '.join(_STRATEGIES)}"
    if find_spec("grpc") is None:
        return f"the package grpcio is not installed: {INSTALL}"
    if not _node(options, environment):
        return "the node's name is not known: set NODE_NAME (spec.nodeName by the downward API)"
    socket = _socket(options, environment)
    return (
        ""
        if Path(socket).is_socket()
        else f"{socket} is no socket: the platform connector's has to be mounted"
    )


def payload(telling: Telling, options: Options, environment: Environment) -> list[dict[str, Any]] | None:
    """HealthEvents with the names of the schema; None where none of the changes is about this node."""
    changes = [
        one for one in telling.changes if of_this_node(one["finding"], telling.host) and not is_replaced(one)
    ]
    node, strategy = _node(options, environment), _strategy(options)
    return [health_event(change, node, strategy, telling.run) for change in changes] or None


def health_event(change: Change, node: str, strategy: str, run: Mapping[str, Any]) -> dict[str, Any]:
    finding = change["finding"]
    over = change["change"] == "resolved"
    xid = re.fullmatch(r"xid_(\d+)", finding["cause"])
    known = {"job": run.get("job_id"), "run": run.get("run_id"), "class": finding["class"], "cause": finding["cause"],
             "subject": finding["subject"]}  # fmt: skip
    return {
        "version": 1,
        "agent": "diag",
        "componentClass": next(
            (name for name, begins in _COMPONENTS.items() if finding["id"].startswith(begins)), "Node"
        ),
        "checkName": f"Diag{camel(finding['id'])}",
        "isFatal": not over and is_certain(finding),
        "isHealthy": over,
        "message": cut(sentence(change), _MESSAGE_BYTES),
        "recommendedAction": "NONE" if over or not is_certain(finding) else "CONTACT_SUPPORT",
        "errorCode": [xid[1]] if xid else [],
        "metadata": {name: str(value) for name, value in known.items() if value},
        "generatedTimestamp": change["at"],
        "nodeName": node,
        "processingStrategy": strategy,
    }


def send(payload: list[dict[str, Any]], options: Options, environment: Environment) -> Told:
    import grpc

    with grpc.insecure_channel(f"unix:{_socket(options, environment)}") as channel:
        call = channel.unary_unary(METHOD)  # bytes as they are
        try:
            call(encoded(payload), timeout=_SECONDS)
        except grpc.RpcError as error:
            code = error.code()
            again = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            return Told(False, f"refused ({code.name}): {error.details()}", again)
    return Told(True, "accepted")


def _strategy(options: Options) -> str:
    return options.get("strategy", "STORE_ONLY")


def _node(options: Options, environment: Environment) -> str:
    return options.get("node") or environment.get("NODE_NAME", "")


def _socket(options: Options, environment: Environment) -> str:
    given = options.get("socket") or environment.get("PLATFORM_CONNECTOR_SOCKET") or _SOCKET
    return given.removeprefix("unix://").removeprefix("unix:")


# --- the message in protobuf's encoding (protobuf.dev/programming-guides/encoding)


def encoded(events: list[dict[str, Any]]) -> bytes:
    """HealthEvents: version 1 and these.

    >>> encoded([]), encoded([{"version": 1, "isFatal": True}])
    (b'\\x08\\x01', b'\\x08\\x01\\x12\\x04\\x08\\x01(\\x01')
    """
    return _number(1, 1) + b"".join(_bytes(2, b"".join(_fields(event))) for event in events)


def _fields(event: Mapping[str, Any]) -> Iterator[bytes]:
    for name, number in (("version", 1), ("isFatal", 5), ("isHealthy", 6)):
        yield _number(number, int(event.get(name, 0)))
    for name, number in (
        ("agent", 2),
        ("componentClass", 3),
        ("checkName", 4),
        ("message", 7),
        ("nodeName", 13),
    ):
        yield _text(number, event.get(name, ""))
    yield _number(8, _ACTIONS[event.get("recommendedAction", "NONE")])
    for code in event.get("errorCode", ()):
        yield _text(9, code)
    for key, value in event.get("metadata", {}).items():
        yield _bytes(11, _text(1, key) + _text(2, value))
    if at := event.get("generatedTimestamp"):
        seconds, nanos = divmod(round(at * 1e6), 1_000_000)
        yield _bytes(12, _number(1, seconds) + _number(2, nanos * 1000))
    yield _number(16, _STRATEGIES.get(event.get("processingStrategy", ""), 0))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode()) if text else b""


def _bytes(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """
    >>> _varint(1), _varint(300)
    (b'\\x01', b'\\xac\\x02')
    """
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


FEED = Feed(
    "nvsentinel",
    ("strategy", "socket", "node"),
    lacking,
    payload,
    send,
    acts=lambda options: _strategy(options) != "STORE_ONLY",
)
