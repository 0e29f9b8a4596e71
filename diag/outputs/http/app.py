"""The node's HTTP app over a HubView: who asks what, and what is answered. `server` runs it.

FastAPI is imported with this module, which is imported where an app is made.
"""

import asyncio
import json
import secrets
import time
import zlib
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, HTTPException, Path, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, Response

from diag.launch.service_discovery import sd_document
from diag.outputs.http import api_page
from diag.outputs.http.answers import Reading, answer, answers, content, json_of, refusals, shapes
from diag.outputs.http.daemon_thread import in_daemon_thread
from diag.outputs.http.guard import Guard, plain_address
from diag.outputs.http.page_routes import add_page
from diag.outputs.http.work_routes import add_dump, add_flames
from diag.outputs.prometheus.prometheus import exposition, families
from diag.outputs.report import report
from diag.outputs.view.view import HubView, ranks_json, rows_of_job, stacks_json
from diag.text.errors import Busy, OtherJob
from diag.text.units import format_bytes, format_seconds

_LOCK_SECONDS = 5.0  # a hub holds its lock for milliseconds; Prometheus waits 10 s
_LONGEST_DIGEST = 64 << 20
_BODY_SECONDS = 15.0  # a hub gives up its request after 4 s
_NOT_JOINED = "this hub has not joined others: its job has one node, or no token"
# What reading a digest of another version, or junk, ends with.
_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, zlib.error)
_T = TypeVar("_T")


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        document = super().openapi()
        document["components"] = {"schemas": shapes()}
        return document


def create_app(view: HubView, *, host: str = "127.0.0.1", clock: Callable[[], float] = time.time) -> FastAPI:
    """The app of contracts.md. `host` is the address it will be bound to; it decides, with the view, who may
    ask."""
    app = _App(
        title="diag",
        version=view.version,
        description="What diag knows of this node's training ranks now.",
        docs_url=None,
        redoc_url=None,
        default_response_class=Response,
        responses=refusals(401, 403, 503),
    )
    app.add_middleware(Guard, view=view, host=host, clock=clock)
    reading = _reading(view)
    written: list[str] = []
    app.state.events = add_page(app, view, reading, written)
    _add_ranks(app, view, reading)
    add_flames(app, view, reading)
    add_dump(app, view, written)
    _add_nodes(app, view)
    _add_metrics(app, view, reading)
    _add_documentation(app)
    _add_refusals(app)
    return app


def _reading(view: HubView) -> Reading:
    async def reading(read: Callable[[], _T]) -> _T:
        """Run `read` under the hub's lock, without ever blocking the server's loop for long."""
        until = time.monotonic() + _LOCK_SECONDS
        while not view.lock.acquire(timeout=0.02):
            if time.monotonic() > until:
                raise HTTPException(
                    503, f"diag's engine has been busy for {format_seconds(_LOCK_SECONDS)}; try again"
                )
            await asyncio.sleep(0.01)
        try:
            return read()
        finally:
            view.lock.release()

    return reading


def _add_ranks(app: FastAPI, view: HubView, reading: Reading) -> None:
    @app.get("/findings", responses=answers("Report"))
    async def findings() -> Response:
        """What is wrong now and what could not be checked: the document that `diag replay --json` prints."""
        return answer(await reading(lambda: report(view.engine)))

    @app.get("/ranks", responses=answers("Ranks"))
    async def ranks() -> Response:
        """Every rank of this node, and of all where this hub judges the whole job: its state, what its main
        thread does, what moved last, what it uses."""
        rows, at = await reading(lambda: (ranks_json(view.engine), view.engine.now))
        others = await in_daemon_thread(view.cluster.other_ranks) if view.cluster.takes_digests else []
        return answer({"schema": "diag.ranks/1", "at": at, "ranks": rows_of_job(rows, others)})

    @app.get("/ranks/{rank}/stacks", responses=answers("Stacks", 404, 422))
    async def stacks(rank: Annotated[int, Path(description="global rank")]) -> Response:
        """The last Python stacks of a rank, all threads, and of its children."""
        try:
            return answer(await reading(lambda: stacks_json(view.engine, rank)))
        except KeyError:
            seen = await reading(lambda: sorted(view.engine.job.ranks))
            raise HTTPException(404, f"rank {rank} was not seen on this node; seen: {seen}") from None


def _add_nodes(app: FastAPI, view: HubView) -> None:
    """What the hubs of one job report to each other."""

    @app.post(
        "/digests",
        responses=answers("DigestAnswer", 409, 422),
        openapi_extra={"requestBody": {"required": True, **json_of("Digest")}},
    )
    async def digests(request: Request) -> Response:
        """A digest of another node's hub (for hubs only). The answer has the job hub's verdict, and when to
        report again."""
        try:
            # before anything is read: on loopback any user of the machine may ask
            if not view.cluster.takes_digests:
                raise HTTPException(409, _NOT_JOINED)
            document = _unpacked(await _body(request), request.headers.get("content-encoding", ""))
            taken = view.cluster.take_digest(
                document, plain_address(request.client.host if request.client else "")
            )
        except ClientDisconnect:
            raise HTTPException(400, "the digest was cut off") from None
        except asyncio.TimeoutError:
            raise HTTPException(
                408, f"the digest did not arrive in full within {format_seconds(_BODY_SECONDS)}"
            ) from None
        except Busy as error:
            raise HTTPException(503, str(error)) from None
        except OtherJob as error:
            raise HTTPException(403, str(error)) from None
        except _UNREADABLE as error:
            raise HTTPException(422, f"not a digest: {type(error).__name__}: {str(error)[:200]}") from None
        if taken is None:
            raise HTTPException(409, _NOT_JOINED)
        return answer(taken)

    @app.get("/nodes", responses=answers("Nodes"))
    async def nodes() -> Response:
        """The nodes of the job: who was heard when. Complete on the job hub."""
        return answer({"schema": "diag.nodes/1", "nodes": await in_daemon_thread(view.cluster.nodes)})


def _add_metrics(app: FastAPI, view: HubView, reading: Reading) -> None:
    formats = content("Metrics", "text/plain", "application/openmetrics-text")

    @app.get("/metrics", responses=formats)
    async def metrics(request: Request) -> Response:
        """Prometheus text, or OpenMetrics where the scraper accepts it."""
        cluster = await in_daemon_thread(view.cluster.facts) if view.cluster.takes_digests else None
        taken = await reading(lambda: families(view, cluster))
        body, content_type = exposition(taken, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    @app.get("/sd", responses=answers("SdGroups"))
    async def sd() -> Response:
        """The hubs of the job, for `http_sd_configs` of Prometheus."""
        return answer(sd_document(view.targets()))

    @app.get("/healthz", responses=answers("Health"))
    async def healthz() -> Response:
        """Whether diag itself answers; nothing about the job."""
        await reading(lambda: None)
        return answer({"status": "ok"})


def _add_documentation(app: FastAPI) -> None:
    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> Response:
        nonce = secrets.token_urlsafe(16)
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        page = api_page.docs_page(app.openapi(), nonce=nonce)
        return HTMLResponse(page, headers={"Content-Security-Policy": policy})


def _add_refusals(app: FastAPI) -> None:
    """Every refusal is JSON with a `detail`."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        wrong = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
        return answer({"detail": wrong}, 422)

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> Response:
        detail = "no such page; see /docs" if error.detail == "Not Found" else error.detail
        refusal = answer({"detail": detail}, error.status_code)
        refusal.headers.update(error.headers or {})
        return refusal


async def _body(request: Request) -> bytes:
    """The body as it was sent. Raises ValueError for more than a digest can have: this process is in the
    job's memory cgroup."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > _LONGEST_DIGEST:
        raise ValueError(f"more than {format_bytes(_LONGEST_DIGEST)}")

    async def read() -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_DIGEST:
                raise ValueError(f"more than {format_bytes(_LONGEST_DIGEST)}")
        return bytes(body)

    return await asyncio.wait_for(read(), _BODY_SECONDS)


def _unpacked(body: bytes, encoding: str) -> dict[str, Any]:
    """The JSON of a request. Raises ValueError or zlib.error for what is none, or too much."""
    if encoding == "gzip":
        unpack = zlib.decompressobj(31)
        body = unpack.decompress(body, _LONGEST_DIGEST)
        if unpack.unconsumed_tail:
            raise ValueError(f"more than {format_bytes(_LONGEST_DIGEST)}")
    document = json.loads(body, parse_constant=_not_a_number)
    if not isinstance(document, dict):
        raise ValueError("no object")
    return document


def _not_a_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")
