"""What the routes of the HTTP API have in common. Imported with FastAPI only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from starlette.responses import Response

from diag.outputs.view.view import json_bytes

_T = TypeVar("_T")


class Reading(Protocol):
    """Runs a function under the hub's lock."""

    def __call__(self, read: Callable[[], _T]) -> Awaitable[_T]: ...


def answer(document: object, status: int = 200) -> Response:
    return Response(json_bytes(document), status, media_type="application/json")
