"""What the routes of the HTTP API have in common: how they read the hub, how they answer, and the shapes of the
answers (schema.yaml) for /docs and OpenAPI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from starlette.responses import Response

from diag.outputs.view.view import json_bytes
from diag.text.tables import load_table

_T = TypeVar("_T")
Responses = dict[int | str, dict[str, Any]]


class Reading(Protocol):
    """Runs a function under the hub's lock."""

    def __call__(self, read: Callable[[], _T]) -> Awaitable[_T]: ...


def answer(document: object, status: int = 200) -> Response:
    return Response(json_bytes(document), status, media_type="application/json")


def shapes() -> dict[str, dict[str, Any]]:
    """By name; read when they are first asked for."""
    return load_table(Path(__file__).parent / "schema.yaml")


def json_of(shape: str) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape}"}}}}


def refusals(*statuses: int) -> Responses:
    """As `detail`, not FastAPI's list of errors."""
    return {
        status: {**json_of("Error"), **({"description": "Not understood"} if status == 422 else {})}
        for status in statuses
    }


def answers(shape: str, *refused: int) -> Responses:
    """JSON of this shape, or a refusal with one of these statuses beside those that every route has."""
    return {200: json_of(shape), **refusals(*refused)}


def content(description: str, *media_types: str) -> Responses:
    return {200: {"description": description, "content": {each: {} for each in media_types}}}
