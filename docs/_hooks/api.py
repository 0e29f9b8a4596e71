"""The HTTP API of a node's hub from its own OpenAPI document."""

from __future__ import annotations

import threading
from typing import Any, cast

from diag import __version__
from diag.outputs.http.app import create_app
from diag.outputs.view.view import HubView

__all__ = ["openapi", "page"]


class _NoHub:
    """As much of a hub as it takes to describe the paths: nobody asks it anything."""

    version = __version__
    lock = threading.RLock()
    takes_digests = True


def openapi() -> dict[str, Any]:
    return dict(create_app(cast(HubView, _NoHub())).openapi())


def page() -> str:
    document = openapi()
    parts = [
        "# HTTP API",
        "Made from the OpenAPI document of this version, which a hub serves at `/openapi.json` and this site has as "
        "[openapi.json](openapi.json). What the paths are for, and who may ask: [HTTP](http.md).",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(method, path, operation)
    parts.append("## Shapes")
    for name, schema in document["components"]["schemas"].items():
        if not name.endswith("ValidationError"):
            parts += [
                f"### {name}",
                *([str(schema["description"])] if "description" in schema else []),
                _fields(schema),
            ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    parts = [f"## {method.upper()} {path}", " ".join(str(operation.get("description", "")).split())]
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [
            f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {_default(one)} | {one.get('description', '')} |"
            for one in parameters
        ]
        parts.append(
            "\n".join(
                ["| parameter | in | type | default | meaning |", "| --- | --- | --- | --- | --- |", *rows]
            )
        )
    rows = [f"| {status} | {_answer(response)} |" for status, response in operation["responses"].items()]
    return [*parts, "\n".join(["| status | answer |", "| --- | --- |", *rows])]


def _default(parameter: dict[str, Any]) -> str:
    if parameter.get("required"):
        return "required"
    value = parameter["schema"].get("default")
    return "" if value is None else f"`{value}`"


def _answer(response: dict[str, Any]) -> str:
    shapes = [_type(kind["schema"]) for kind in response.get("content", {}).values() if kind.get("schema")]
    return " ".join(filter(None, [response["description"], *shapes]))


def _fields(schema: dict[str, Any]) -> str:
    rows = [
        f"| `{name}` | {_type(field)} | {field.get('description', '')} |"
        for name, field in schema.get("properties", {}).items()
    ]
    return "\n".join(["| key | type | meaning |", "| --- | --- | --- |", *rows]) if rows else ""


def _type(schema: dict[str, Any]) -> str:
    """In words, with a link to the shape where there is one.

    >>> _type({"anyOf": [{"type": "integer"}, {"type": "null"}]}), _type({"type": "array", "items": {"$ref": "#/x/Job"}})
    ('integer or null', 'list of [Job](#job)')
    """
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return "errors" if name.endswith("ValidationError") else f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = [f"{word} {schema[key]:g}" for key, word in
              (("minimum", "from"), ("exclusiveMinimum", "above"), ("maximum", "to"), ("exclusiveMaximum", "below"))
              if key in schema]  # fmt: skip
    return " ".join([str(schema.get("type", "any")), *bounds])
