"""The node's HTTP face: an app over a HubView, and a server for it in a thread of its own.

FastAPI and uvicorn are imported when an app or a server is made, so that importing this costs nothing. This
module does without `from __future__ import annotations`: FastAPI must see the classes that are imported
inside.
"""

import asyncio
import json
import secrets
import time
import zlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from diag.launch.service_discovery import sd_document
from diag.model import format_ranks
from diag.outputs.http.guard import Guard, asker_of, is_loopback, plain_address
from diag.outputs.report import report
from diag.outputs.terminal.text import dump_text
from diag.outputs.view.view import FlameWanted, HubView, json_bytes, ranks_json, rows_of_job, stacks_json
from diag.text.errors import Busy, DiagError, OtherJob

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

__all__ = ["create_app", "is_loopback"]

DUMP_SECONDS = 10.0  # contracts: complete or explained within 10 s
_LONGEST_DUMP_SECONDS = 60.0
_DUMP_GRACE_SECONDS = 3.0  # past its own deadline a dump is broken, and its caller must hear of it
_LOCK_SECONDS = 5.0  # a hub holds its lock for milliseconds; Prometheus waits 10 s
_LONGEST_DIGEST = 64 << 20
_BODY_SECONDS = 15.0  # a hub gives up its request after 4 s
# A dump or a recording of another user must not stop ranks, nor hold up what the run's own user asks for.
_NOT_YOURS = {
    "detail": "native frames and dumps of more than 10 s are for the user of this run and for bearers of its token",
    "hint": "ask as that user, or set DIAG_TOKEN for the run and give it",
}
_RECORDED = {
    "detail": "this is recorded evidence: there is no process to look at",
    "hint": "its stacks are on the page, and in `diag replay`",
}
_NOT_JOINED = "this hub has not joined others: its job has one node, or no token"
_T = TypeVar("_T")


def create_app(
    view: HubView, *, host: str = "127.0.0.1", clock: Callable[[], float] = time.time
) -> "FastAPI":
    """The app of contracts.md. `host` is the address it will be bound to; it decides, with the view, who may
    ask."""
    from fastapi import FastAPI, HTTPException, Path, Query, Request
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException as AnyHTTPException
    from starlette.requests import ClientDisconnect
    from starlette.responses import HTMLResponse, Response

    from diag.outputs.http import api_page, flame, schema
    from diag.outputs.http.beside import beside
    from diag.outputs.http.drawings import Drawings
    from diag.outputs.http.page_routes import add_face
    from diag.outputs.prometheus.prometheus import exposition, families

    app = FastAPI(
        title="diag",
        version=view.version,
        description="What diag knows of this node's training ranks now.",
        docs_url=None,
        redoc_url=None,
        # Shapes are told by hand: validating every answer against pydantic would cost more than making it.
        responses={401: {"model": schema.Error}, 403: {"model": schema.Error}, 503: {"model": schema.Error}},
    )
    app.add_middleware(Guard, view=view, host=host, clock=clock)
    dumps: dict[str, asyncio.Task[dict[str, Any]]] = {}
    drawings = Drawings()

    async def reading(read: Callable[[], _T]) -> _T:
        """Run `read` under the hub's lock, without ever blocking the server's loop for long."""
        until = time.monotonic() + _LOCK_SECONDS
        while not view.lock.acquire(timeout=0.02):
            if time.monotonic() > until:
                raise HTTPException(503, f"diag's engine has been busy for {_LOCK_SECONDS:.0f} s; try again")
            await asyncio.sleep(0.01)
        try:
            return read()
        finally:
            view.lock.release()

    def answer(document: object, status: int = 200) -> Response:
        return Response(json_bytes(document), status, media_type="application/json")

    def html(text: str, nonce: str) -> Response:
        policy = (
            f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    app.state.events = add_face(app, view, reading)

    @app.get("/findings", responses={200: {"model": schema.Report}}, response_class=Response)
    async def findings() -> Response:
        """What is wrong now and what could not be checked: the document that `diag replay --json` prints."""
        return answer(await reading(lambda: report(view.engine)))

    @app.get("/ranks", responses={200: {"model": schema.Ranks}}, response_class=Response)
    async def ranks() -> Response:
        """Every rank of this node, and of all where this hub judges the whole job: its state, what its main
        thread does, what moved last, what it uses."""
        rows, at = await reading(lambda: (ranks_json(view.engine), view.engine.now))
        others = await beside(view.cluster.other_ranks) if view.cluster.takes_digests else []
        return answer({"schema": "diag.ranks/1", "at": at, "ranks": rows_of_job(rows, others)})

    @app.get(
        "/ranks/{rank}/stacks",
        responses={200: {"model": schema.Stacks}, 404: {"model": schema.Error}, **schema.REFUSED},
        response_class=Response,
    )
    async def stacks(rank: Annotated[int, Path(description="global rank")]) -> Response:
        """The last Python stacks of a rank, all threads, and of its children."""
        try:
            return answer(await reading(lambda: stacks_json(view.engine, rank)))
        except KeyError:
            seen = await reading(lambda: sorted(view.engine.job.ranks))
            raise HTTPException(404, f"rank {rank} was not seen on this node; seen: {seen}") from None

    def drawing(body: bytes | str, form: str) -> Response:
        # py-spy's SVG brings its own script (zoom, search): in a sandbox it reaches nothing of ours.
        policy = (
            "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
            "frame-ancestors 'self'"
        )
        return Response(body, media_type=flame.FORMATS[form], headers={"Content-Security-Policy": policy})

    no_flame: dict[int | str, dict[str, Any]] = {
        404: {"model": schema.Error},
        409: {"model": schema.Error},
        **schema.DRAWINGS,
        **schema.REFUSED,
    }

    @app.get("/ranks/{rank}/flame", responses=no_flame, response_class=Response)
    @app.post("/ranks/{rank}/flame", responses=no_flame, response_class=Response)
    async def flame_of_rank(  # noqa: PLR0917 - FastAPI's way to name what a query has
        request: Request,
        rank: Annotated[int, Path(description="global rank")],
        seconds: Annotated[float, Query(ge=1, le=300, description="how long to look")] = 10.0,
        rate: Annotated[int, Query(ge=1, le=200, description="samples a second")] = 50,
        form: Annotated[Literal["svg", "speedscope", "collapsed"], Query(alias="format")] = "svg",
        children: Annotated[bool, Query(description="its child processes too")] = False,
        native: Annotated[
            bool, Query(description="C and C++ frames too: stops the rank at each sample")
        ] = False,
    ) -> Response:
        """A flame graph of a living rank, recorded now by py-spy; all threads, waiting ones too.
        Content-Location: where this one can be had again for a while."""
        state = await reading(lambda: view.engine.job.ranks.get(rank))
        if state is None:
            seen = await reading(lambda: format_ranks(list(view.engine.job.ranks)))
            there = next((node for node in await beside(view.cluster.nodes) if rank in node["ranks"]), None)
            if there is not None:
                hint = f"it is on {there['host']}: give --endpoint {there['url']} and the run's token"
                return answer({"detail": f"rank {rank} is on another node", "hint": hint}, 404)
            return answer(
                {
                    "detail": f"rank {rank} was not seen on this node",
                    "hint": f"seen: ranks {seen}"
                    if seen
                    else "no rank was seen yet: ask again when the job's ranks run",
                },
                404,
            )
        if not state.alive and not view.recorded:
            said = {
                "detail": f"rank {rank} has ended",
                "hint": f"its recorded stacks: diag flame {rank} --from RUN_DIR",
            }
            return answer(said, 409)
        owns = await asker_of(request).owns_the_run()
        if native and not owns:
            return answer(_NOT_YOURS, 403)
        wanted = FlameWanted(seconds, rate, form, children, native, owns)
        try:
            body = await _unless_gone(request, view.flame(state.placement, wanted))
        except DiagError as error:
            return answer({"detail": f"rank {rank}: {error}", "hint": error.hint}, 503)
        drawn = drawing(body, form)
        drawn.headers["Content-Location"] = f"/drawings/{drawings.keep(body, form)}"
        return drawn

    @app.get(
        "/drawings/{name}",
        responses={404: {"model": schema.Error}, **schema.DRAWINGS, **schema.REFUSED},
        response_class=Response,
    )
    async def drawing_again(name: str) -> Response:
        """A flame graph of a rank that was recorded before; the last few are kept."""
        kept = drawings.get(name)
        if kept is None:
            raise HTTPException(404, "this flame graph is not kept any more: record it again")
        return drawing(*kept)

    @app.get("/flame", responses={**schema.DRAWINGS, **schema.REFUSED}, response_class=Response)
    async def flame_of_all(
        form: Annotated[Literal["svg", "speedscope", "collapsed"], Query(alias="format")] = "svg",
        children: Annotated[bool, Query(description="child processes too")] = False,
    ) -> Response:
        """One flame graph of all ranks, from their last stacks, with the ranks on each frame."""
        profile = await reading(lambda: flame.merged_profile(view.engine, children=children))
        return drawing(flame.write(profile, form), form)

    dumped: dict[int | str, dict[str, Any]] = {
        200: {"model": schema.Dump},
        409: {"model": schema.Error},
        504: {"model": schema.Error},
        **schema.REFUSED,
    }

    @app.get("/dump", responses=dumped, response_class=Response)
    @app.post("/dump", responses=dumped, response_class=Response)
    async def dump(  # noqa: PLR0917 - FastAPI passes them by name
        request: Request,
        deadline: Annotated[
            float, Query(ge=0.5, le=_LONGEST_DUMP_SECONDS, description="seconds it may take")
        ] = DUMP_SECONDS,
        native: Annotated[
            bool, Query(description="also C frames of one rank of each class, which are stopped for it")
        ] = False,
        columns: Annotated[
            int, Query(ge=0, le=10_000, description="also as text of this width, in `screen`")
        ] = 0,
        colour: Annotated[bool, Query(description="that text with colours")] = False,
        lang: Annotated[
            Literal["en", "zh"], Query(description="zh: that text with findings' meanings in Chinese")
        ] = "en",
        scope: Annotated[
            Literal["job", "node"], Query(description="node: of this node only, as other hubs ask")
        ] = "job",
    ) -> Response:
        """Evidence of every rank, read now; complete or explained within the deadline. Those who ask while
        one is being made get that one."""
        if view.recorded:
            return answer(_RECORDED, 409)
        if (native or scope != "job" or deadline > DUMP_SECONDS) and not await asker_of(
            request
        ).owns_the_run():
            return answer(_NOT_YOURS, 403)
        kind = f"{scope}-native" if native else scope
        task = dumps.get(kind)
        if task is None or task.done():
            task = dumps[kind] = asyncio.ensure_future(view.dump(deadline, native=native, scope=scope))
        try:
            document = await asyncio.wait_for(asyncio.shield(task), deadline + _DUMP_GRACE_SECONDS)
        except asyncio.TimeoutError:
            raise HTTPException(
                504, f"the dump did not end in {deadline + _DUMP_GRACE_SECONDS:.0f} s"
            ) from None
        if not columns or "report" not in document:
            return answer(document)
        return answer({**document, "screen": dump_text(document, colour=colour, width=columns, lang=lang)})

    @app.post(
        "/digests",
        responses={200: {"model": schema.Told}, 409: {"model": schema.Error}, **schema.REFUSED},
        openapi_extra=schema.DIGEST_BODY,
        response_class=Response,
    )
    async def digests(request: Request) -> Response:
        """A digest of another node's hub (for hubs only). The answer tells the job hub's verdict, and when to
        report again."""
        try:
            if (
                not view.cluster.takes_digests
            ):  # before anything is read: on loopback any user of the machine may ask
                raise HTTPException(409, _NOT_JOINED)
            document = _unpacked(await _body(request), request.headers.get("content-encoding", ""))
            told = view.cluster.take_digest(
                document, plain_address(request.client.host if request.client else "")
            )
        except ClientDisconnect:
            raise HTTPException(400, "the digest was cut off") from None
        except asyncio.TimeoutError:
            raise HTTPException(408, f"the digest did not come whole within {_BODY_SECONDS:.0f} s") from None
        except Busy as error:
            raise HTTPException(503, str(error)) from None
        except OtherJob as error:
            raise HTTPException(403, str(error)) from None
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
            RecursionError,
            zlib.error,
        ) as error:
            raise HTTPException(
                422, f"this is no digest: {type(error).__name__}: {str(error)[:200]}"
            ) from None
        if told is None:
            raise HTTPException(409, _NOT_JOINED)
        return answer(told)

    @app.get("/nodes", responses={200: {"model": schema.Nodes}}, response_class=Response)
    async def nodes() -> Response:
        """The nodes of the job: who was heard when. Complete on the job hub."""
        return answer({"schema": "diag.nodes/1", "nodes": await beside(view.cluster.nodes)})

    @app.get("/metrics", responses=schema.METRICS, response_class=Response)
    async def metrics(request: Request) -> Response:
        """Prometheus text, or OpenMetrics where the scraper accepts it."""
        cluster = await beside(view.cluster.facts) if view.cluster.takes_digests else None
        taken = await reading(lambda: families(view, cluster))
        body, content_type = exposition(taken, request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": content_type})

    @app.get("/sd", responses={200: {"model": list[schema.SdGroup]}}, response_class=Response)
    async def sd() -> Response:
        """The hubs of the job, for `http_sd_configs` of Prometheus."""
        return answer(sd_document(view.targets()))

    @app.get("/healthz", responses={200: {"model": schema.Health}}, response_class=Response)
    async def healthz() -> Response:
        """Whether diag itself answers; says nothing about the job."""
        await reading(lambda: None)
        return answer({"status": "ok"})

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> Response:
        nonce = secrets.token_urlsafe(16)
        return html(api_page.docs_page(app.openapi(), nonce=nonce), nonce)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        told = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
        return answer({"detail": told}, 422)

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> Response:
        detail = "there is no such page; /docs lists all" if error.detail == "Not Found" else error.detail
        said = answer({"detail": detail}, error.status_code)
        said.headers.update(error.headers or {})
        return said

    return app


async def _unless_gone(request: "Request", work: Coroutine[Any, Any, bytes]) -> bytes:
    """What `work` gives. It is cancelled when the client has gone: nobody would take what it gives."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise DiagError("whoever asked for it has gone")
        return working.result()
    finally:
        for each in (working, leaving):
            each.cancel()


async def _gone(request: "Request") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _body(request: "Request") -> bytes:
    """The body as it was sent. Raises ValueError for more than a digest can have: this process is in the
    job's memory cgroup."""
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > _LONGEST_DIGEST:
        raise ValueError(f"more than {_LONGEST_DIGEST >> 20} MiB")

    async def read() -> bytes:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST_DIGEST:
                raise ValueError(f"more than {_LONGEST_DIGEST >> 20} MiB")
        return bytes(body)

    return await asyncio.wait_for(read(), _BODY_SECONDS)


def _unpacked(body: bytes, encoding: str) -> dict[str, Any]:
    """The JSON of a request. Raises ValueError or zlib.error for what is none, or too much."""
    if encoding == "gzip":
        unpack = zlib.decompressobj(31)
        body = unpack.decompress(body, _LONGEST_DIGEST)
        if unpack.unconsumed_tail:
            raise ValueError(f"more than {_LONGEST_DIGEST >> 20} MiB")
    document = json.loads(body, parse_constant=_no_number)
    if not isinstance(document, dict):
        raise ValueError("no object")
    return document


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")
