"""Every route is in one class of who may ask for it, and is asked without the token, with a wrong and with
the right one."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route

from diag.outputs.http.app import create_app
from diag.outputs.http.guard import ROUTES, Access

TOKEN = "t" * 32
WRONG, RIGHT = {"authorization": "Bearer " + "x" * 32}, {"authorization": f"Bearer {TOKEN}"}
GIVEN = {"name:path": "app.js", "finding": "hang", "rank": "0", "name": "1"}


def routes(app: Any) -> list[tuple[str, str]]:
    """(method, path) of all that there are, those that are not in the OpenAPI document too."""
    return sorted({(method, route.path) for route in app.routes if isinstance(route, (Route, APIRoute))
                   for method in route.methods or () if method != "HEAD"})  # fmt: skip


def asked(hub: Any, host: str, wanted: list[tuple[str, str]], **headers: str) -> dict[tuple[str, str], int]:
    """Status of each. /events never ends: who is let in is given up after its head."""

    async def status(app: Any, method: str, path: str) -> int:
        told: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        sent = [{"type": "http.request", "body": b"", "more_body": False}]

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start" and not told.done():
                told.set_result(message["status"])

        async def receive() -> Any:
            if sent:
                return sent.pop()
            await asyncio.Event().wait()

        plain = re.sub(r"\{([\w:]+)\}", lambda found: GIVEN[found[1]], path)
        named = [
            (b"host", b"127.0.0.1"),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ]
        scope = {
            "type": "http", "method": method, "path": plain, "raw_path": plain.encode(), "query_string": b"", "headers": named,
            "http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 9), "server": ("127.0.0.1", 80), "root_path": "",
        }  # fmt: skip
        task = asyncio.ensure_future(app(scope, receive, send))
        try:
            return await asyncio.wait_for(told, 20)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def all_of_them() -> dict[tuple[str, str], int]:
        app = create_app(hub, host=host)
        found = {(method, path): await status(app, method, path) for method, path in wanted}
        app.state.events.close()
        return found

    return asyncio.run(all_of_them())


def test_every_route_is_in_exactly_one_class_and_every_class_is_of_routes(hung: Any) -> None:
    there = {path for _, path in routes(create_app(hung))}

    assert there == set(ROUTES)


def test_there_are_no_routes_of_another_kind(hung: Any) -> None:
    """A mount or a websocket would have no class."""
    assert [each for each in create_app(hung).routes if not isinstance(each, Route)] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"], ids=["loopback", "beyond"])
@pytest.mark.parametrize(
    "headers, told", [({}, "none"), (WRONG, "wrong"), (RIGHT, "right")], ids=["none", "wrong", "right"]
)
def test_each_route_asks_for_the_token_as_its_class_says(
    hung: Any, host: str, headers: dict[str, str], told: str
) -> None:
    hung.token, hung.bound_beyond_loopback = TOKEN, host != "127.0.0.1"
    wanted = routes(create_app(hung))

    found = asked(hung, host, wanted, **headers)

    needs = {Access.OPEN: False, Access.READS: host != "127.0.0.1", Access.WORKS: True}
    refused = {route for route, status in found.items() if status == 401}
    assert refused == {route for route in wanted if needs[ROUTES[route[1]]] and told != "right"}
    # drawings, digests
    assert {status for route, status in found.items() if route not in refused} <= {200, 404, 409, 422}


def test_without_a_token_on_loopback_all_are_answered(hung: Any) -> None:
    found = asked(hung, "127.0.0.1", routes(create_app(hung)))

    assert 401 not in found.values() and 403 not in found.values()


@pytest.mark.parametrize("path", ["/flame/", "/dump/", "/no/such/route", "/ranks/0/flame/"])
def test_path_that_no_route_has_needs_the_token_where_one_is_set(hung: Any, path: str) -> None:
    hung.token = TOKEN

    async def status() -> int:
        transport = httpx.ASGITransport(app=create_app(hung), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9095") as client:
            return (await client.get(path)).status_code

    assert asyncio.run(status()) == 401
