"""The shapes that /docs and OpenAPI describe are those of the answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from diag.outputs.http.answers import shapes
from tests.outputs.asking import ask

TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


def differences(value: Any, shape: dict[str, Any], where: str = "") -> list[str]:
    """What a value has otherwise than a shape of schema.yaml says."""
    if "$ref" in shape:
        shape = shapes()[shape["$ref"].rpartition("/")[2]]
    if "anyOf" in shape:
        found = [differences(value, each, where) for each in shape["anyOf"]]
        return [] if [] in found else found[0]
    wanted = shape["type"] if isinstance(shape["type"], list) else [shape["type"]]
    if not any(isinstance(value, TYPES[name]) for name in wanted):
        return [f"{where}: {value!r} is not of {wanted}"]
    if value not in shape.get("enum", [shape.get("const", value)]):
        return [f"{where}: {value!r}"]
    if isinstance(value, list):
        pairs = [(str(index), each, shape["items"]) for index, each in enumerate(value)]
    elif isinstance(value, dict):
        more, fields = shape.get("additionalProperties"), shape.get("properties", {})
        if missing := {*shape.get("required", ())} - value.keys():
            return [f"{where}: without {missing}"]
        pairs = [(key, each, fields.get(key, more)) for key, each in value.items() if fields.get(key, more)]
    else:
        return []
    return [line for key, each, of in pairs for line in differences(each, of, f"{where}/{key}")]


@pytest.mark.parametrize(
    "path, shape",
    [
        ("/findings", "Report"),
        ("/ranks/3/stacks", "Stacks"),
        ("/ranks", "Ranks"),
        ("/nodes", "Nodes"),
        ("/sd", "SdGroups"),
        ("/healthz", "Health"),
        ("/timeline", "Timeline"),
        ("/state", "State"),
        ("/state?ranks=columns", "State"),
        ("/explain/hang", "Explained"),
        ("/nope", "Error"),
    ],
)
def test_answers_have_the_shapes_that_the_docs_describe(hung: Any, path: str, shape: str) -> None:
    assert differences(ask(hung, path).json(), shapes()[shape]) == []


def test_shapes_tell_an_answer_of_another_kind(hung: Any) -> None:
    report = ask(hung, "/findings").json()

    assert differences({**report, "findings": [{"id": 1}]}, shapes()["Report"])
    assert differences({**report, "job": {**report["job"], "phase": None}}, shapes()["Report"])
    assert differences(ask(hung, "/ranks").json(), shapes()["Report"])


def test_every_shape_that_is_named_is_described(hung: Any) -> None:
    document = ask(hung, "/openapi.json").text

    assert set(re.findall(r"#/components/schemas/(\w+)", document)) <= set(shapes())
