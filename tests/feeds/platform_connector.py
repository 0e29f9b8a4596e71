"""NVSentinel's platform connector on a socket of this machine: gRPC, and messages by the numbers and types that NVSentinel 1.31
publishes (data-models/protobufs/health_event.proto)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ENUMS = {
    "ProcessingStrategy": {"UNSPECIFIED": 0, "EXECUTE_REMEDIATION": 1, "STORE_ONLY": 2},
    "RecommendedAction": {
        "NONE": 0, "COMPONENT_RESET": 2, "CONTACT_SUPPORT": 5, "RUN_FIELDDIAG": 6, "RESTART_VM": 15, "RESTART_BM": 24,
        "REPLACE_VM": 25, "RUN_DCGMEUD": 26, "CUSTOM": 27, "REMEDIATE": 28, "UNKNOWN": 99,
    },
}  # fmt: skip
# By message: (number, name, type); a type in brackets is repeated, `map` is of texts.
_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "Entity": ((1, "entityType", "string"), (2, "entityValue", "string")),
    "BehaviourOverrides": ((1, "force", "bool"), (2, "skip", "bool")),
    "HealthEvent": (
        (1, "version", "uint32"), (2, "agent", "string"), (3, "componentClass", "string"), (4, "checkName", "string"),
        (5, "isFatal", "bool"), (6, "isHealthy", "bool"), (7, "message", "string"),
        (8, "recommendedAction", "RecommendedAction"), (9, "errorCode", "[string]"), (10, "entitiesImpacted", "[Entity]"),
        (11, "metadata", "map"), (12, "generatedTimestamp", "google.protobuf.Timestamp"), (13, "nodeName", "string"),
        (14, "quarantineOverrides", "BehaviourOverrides"), (15, "drainOverrides", "BehaviourOverrides"),
        (16, "processingStrategy", "ProcessingStrategy"), (17, "id", "string"), (18, "customRecommendedAction", "string"),
    ),
    "HealthEvents": ((1, "version", "uint32"), (2, "events", "[HealthEvent]")),
}  # fmt: skip


def health_events() -> Any:
    """The class of the message HealthEvents."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    del timestamp_pb2  # imported for what it registers
    file = descriptor_pb2.FileDescriptorProto(
        name="health_event.proto", package="datamodels", syntax="proto3"
    )
    file.dependency.append("google/protobuf/timestamp.proto")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field_name, kind in fields:
            _add(message, number, field_name, kind)
    pool = descriptor_pool.Default()
    if not _known(pool):
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("datamodels.HealthEvents"))


def _known(pool: Any) -> bool:
    try:
        pool.FindMessageTypeByName("datamodels.HealthEvents")
    except KeyError:
        return False
    return True


def _add(message: Any, number: int, name: str, kind: str) -> None:
    of = message.field.add(name=name, number=number, label=3 if kind.startswith("[") or kind == "map" else 1)
    bare = kind.strip("[]")
    if kind == "map":
        entry = message.nested_type.add(name="MetadataEntry")
        entry.options.map_entry = True
        _add(entry, 1, "key", "string")
        _add(entry, 2, "value", "string")
        of.type, of.type_name = of.TYPE_MESSAGE, ".datamodels.HealthEvent.MetadataEntry"
    elif bare in ("uint32", "bool", "string"):
        of.type = {"uint32": of.TYPE_UINT32, "bool": of.TYPE_BOOL, "string": of.TYPE_STRING}[bare]
    elif bare in _ENUMS:
        of.type, of.type_name = of.TYPE_ENUM, f".datamodels.{bare}"
    else:
        of.type, of.type_name = of.TYPE_MESSAGE, f".{bare}" if "." in bare else f".datamodels.{bare}"


@dataclass
class Connector:
    """`refuses`: the status that it answers with."""

    events: list[dict[str, Any]] = field(default_factory=list)
    refuses: str = ""


@contextmanager
def platform_connector(socket: Path) -> Iterator[Connector]:
    import grpc
    from google.protobuf import json_format

    kept, message = Connector(), health_events()

    def occurred(request: bytes, context: Any) -> bytes:
        if kept.refuses:
            context.abort(getattr(grpc.StatusCode, kept.refuses), "datastore is not ready")
        read = message.FromString(request)
        assert read.version == 1
        kept.events += [
            json_format.MessageToDict(
                one, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            for one in read.events
        ]
        return b""  # google.protobuf.Empty

    handler = grpc.method_handlers_generic_handler(
        "datamodels.PlatformConnector",
        {"HealthEventOccurredV1": grpc.unary_unary_rpc_method_handler(occurred)},
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        yield kept
    finally:
        server.stop(None).wait()
