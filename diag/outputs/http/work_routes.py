"""The routes by which ranks and hub are made to work: dumps of every rank, and flame graphs."""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Path, Query, Request
from starlette.responses import Response

from diag.outputs.http import flame
from diag.outputs.http.answers import Reading, answer, answers, content, refusals
from diag.outputs.http.daemon_thread import in_daemon_thread
from diag.outputs.http.guard import asker_of
from diag.outputs.terminal.text import dump_text
from diag.outputs.view.view import FlameWanted, HubView
from diag.text.errors import DiagError
from diag.text.units import format_ranks, format_seconds

_DUMP_SECONDS = 10.0  # contracts: complete or explained within 10 s
_LONGEST_DUMP_SECONDS = 60.0
_DUMP_GRACE_SECONDS = 3.0  # past its own deadline a dump is broken, and its caller must hear of it
_RECORDED = {
    "detail": "recorded evidence: there is no live process to read",
    "hint": "its stacks are on the page, and in `diag replay`",
}
# Graphs that can be had again: recording takes seconds, and a page shows, opens and keeps the same one. Some MiB at
# worst, in the memory of the job's node.
_MOST_KEPT = 4
_MOST_BUNDLES = 64  # of which the paths are known; the run directory keeps fewer
# A dump or a recording of another user must not stop ranks, nor hold up what the run's own user asks for.
NOT_YOURS = {
    "detail": "native frames and dumps of more than 10 s are for the user of this run and for bearers of its token",
    "hint": "ask as that user, or set DIAG_TOKEN for the run and give it",
}


def add_dump(app: FastAPI, view: HubView, written: list[str]) -> None:
    """The path of each bundle that a dump wrote goes to `written`, which GET /bundles/{name} knows of."""
    dumps: dict[str, asyncio.Task[dict[str, Any]]] = {}
    dumped = answers("Dump", 409, 422, 504)

    @app.get("/dump", responses=dumped)
    @app.post("/dump", responses=dumped)
    async def dump(  # noqa: PLR0917 - FastAPI passes them by name
        request: Request,
        deadline: Annotated[
            float, Query(ge=0.5, le=_LONGEST_DUMP_SECONDS, description="seconds it may take")
        ] = _DUMP_SECONDS,
        native: Annotated[
            bool, Query(description="also C frames of one rank of each class, which are stopped for it")
        ] = False,
        columns: Annotated[
            int, Query(ge=0, le=10_000, description="also as text of this width, in `screen`")
        ] = 0,
        colour: Annotated[bool, Query(description="that text with colours")] = False,
        lang: Annotated[Literal["en", "zh"], Query(description="zh: that text in Chinese")] = "en",
        scope: Annotated[
            Literal["job", "node"], Query(description="node: of this node only, as other hubs ask")
        ] = "job",
    ) -> Response:
        """Evidence of every rank, read now; complete or explained within the deadline. Those who ask while
        one is being made get that one."""
        if view.recorded:
            return answer(_RECORDED, 409)
        if (native or scope != "job" or deadline > _DUMP_SECONDS) and not await asker_of(
            request
        ).owns_the_run():
            return answer(NOT_YOURS, 403)
        kind = f"{scope}-native" if native else scope
        task = dumps.get(kind)
        if task is None or task.done():
            task = dumps[kind] = asyncio.ensure_future(view.dump(deadline, native=native, scope=scope))
        try:
            document = await asyncio.wait_for(asyncio.shield(task), deadline + _DUMP_GRACE_SECONDS)
        except asyncio.TimeoutError:
            raise HTTPException(
                504, f"the dump did not end in {format_seconds(deadline + _DUMP_GRACE_SECONDS)}"
            ) from None
        path = document.get("bundle")
        if path and path not in written:
            written.append(path)
            del written[:-_MOST_BUNDLES]
        if not columns or "report" not in document:
            return answer(document)
        return answer({**document, "screen": dump_text(document, colour=colour, width=columns, lang=lang)})


def add_flames(app: FastAPI, view: HubView, reading: Reading) -> None:
    kept: OrderedDict[str, tuple[bytes, str]] = OrderedDict()  # name -> body and form
    names = itertools.count(1)
    drawn = content("A flame graph", "image/svg+xml", "application/json", "text/plain")
    recorded = {**drawn, **refusals(404, 409, 422)}

    @app.get("/ranks/{rank}/flame", responses=recorded)
    @app.post("/ranks/{rank}/flame", responses=recorded)
    async def flame_of_rank(  # noqa: PLR0917 - FastAPI's way to name what a query has
        request: Request,
        rank: Annotated[int, Path(description="global rank")],
        seconds: Annotated[float, Query(ge=1, le=300, description="recording time in seconds")] = 10.0,
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
            there = next(
                (node for node in await in_daemon_thread(view.cluster.nodes) if rank in node["ranks"]), None
            )
            if there is not None:
                hint = f"it is on {there['host']}: give --endpoint {there['url']} and the run's token"
                return answer({"detail": f"rank {rank} is on another node", "hint": hint}, 404)
            hint = f"seen: {seen}" if seen else "no rank was seen yet: ask again when the job's ranks run"
            return answer({"detail": f"rank {rank} was not seen on this node", "hint": hint}, 404)
        if not state.alive and not view.recorded:
            hint = f"its recorded stacks: diag flame {rank} --from RUN_DIR"
            return answer({"detail": f"rank {rank} has ended", "hint": hint}, 409)
        owns = await asker_of(request).owns_the_run()
        if native and not owns:
            return answer(NOT_YOURS, 403)
        wanted = FlameWanted(seconds, rate, form, children, native, owns)
        try:
            body = await _unless_gone(request, view.flame(state.placement, wanted))
        except DiagError as error:
            return answer({"detail": f"rank {rank}: {error}", "hint": error.hint}, 503)
        name = str(next(names))
        kept[name] = (body, form)
        if len(kept) > _MOST_KEPT:
            kept.popitem(last=False)
        drawing = _drawing(body, form)
        drawing.headers["Content-Location"] = f"/drawings/{name}"
        return drawing

    @app.get("/drawings/{name}", responses={**drawn, **refusals(404, 422)})
    async def drawing_again(name: str) -> Response:
        """A flame graph of a rank that was recorded before; the last few are kept."""
        if name not in kept:
            raise HTTPException(404, "this flame graph is not kept any more: record it again")
        return _drawing(*kept[name])

    @app.get("/flame", responses={**drawn, **refusals(422)})
    async def flame_of_all(
        form: Annotated[Literal["svg", "speedscope", "collapsed"], Query(alias="format")] = "svg",
        children: Annotated[bool, Query(description="child processes too")] = False,
    ) -> Response:
        """One flame graph of all ranks, from their last stacks, with the ranks on each frame."""
        profile = await reading(lambda: flame.merged_profile(view.engine, children=children))
        return _drawing(flame.write(profile, form), form)


def _drawing(body: bytes | str, form: str) -> Response:
    # py-spy's SVG brings its own script (zoom, search): in a sandbox it reaches nothing of ours.
    policy = (
        "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "frame-ancestors 'self'"
    )
    return Response(body, media_type=flame.FORMATS[form], headers={"Content-Security-Policy": policy})


async def _unless_gone(request: "Request", work: Coroutine[Any, Any, bytes]) -> bytes:
    """What `work` gives. It is cancelled when the client has disconnected: nothing would take its result."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise DiagError("the client has disconnected")
        return working.result()
    finally:
        for each in (working, leaving):
            each.cancel()


async def _gone(request: "Request") -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
