"""The routes of the page: its files, what it shows, and how it hears of changes. Added to the app of `http`.

This module does without `from __future__ import annotations`: FastAPI must see the classes that are imported
inside.
"""

from collections.abc import Awaitable, Callable
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, Literal

from diag.outputs.http.daemon_thread import in_daemon_thread
from diag.outputs.http.events import Events, TooMany
from diag.outputs.http.guard import asker_of
from diag.outputs.view import parts
from diag.outputs.view.view import HubView, json_bytes

if TYPE_CHECKING:
    from fastapi import FastAPI

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
# All that the page needs comes from here; a flame graph stands in a frame with a sandbox of its own.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_face(app: "FastAPI", view: HubView, reading: Callable[[Callable[[], Any]], Awaitable[Any]]) -> Events:
    """`reading` runs a function under the hub's lock. The events are to be closed before the server ends."""
    from fastapi import HTTPException, Path, Query, Request
    from fastapi.responses import Response, StreamingResponse

    from diag.outputs import manual
    from diag.outputs.http import schema

    folder = resources.files("diag.outputs").joinpath("web")
    files = {
        prefix + each.name: each
        for prefix, place in (("", folder), ("vendor/", folder.joinpath("vendor")))
        if place.is_dir()
        for each in place.iterdir()
        if each.is_file() and each.name.rpartition(".")[2] in _TYPES
    }

    def send(name: str) -> Response:
        headers = {"Content-Security-Policy": _POLICY}
        return Response(files[name].read_bytes(), media_type=_TYPES[name.rpartition(".")[2]], headers=headers)

    async def look(slow: bool = True) -> dict[str, Any]:
        told: dict[str, Any] = await reading(lambda: parts.own_parts(view, slow=slow))
        if not view.cluster.takes_digests:
            return parts.with_others(told, view, slow=slow)  # no other node, no other lock
        return await in_daemon_thread(lambda: parts.with_others(told, view, slow=slow))

    events = Events(look)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return send("index.html")

    @app.get("/assets/{name:path}", include_in_schema=False)
    async def asset(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "the page has no such file")
        return send(name)

    @app.get("/state", responses={200: {"model": schema.State}}, response_class=Response)
    async def state() -> Response:
        """All that the page shows, at once."""
        return Response(json_bytes({"schema": "diag.state/1", **await look()}), media_type="application/json")

    @app.get("/events", responses=schema.EVENTS, response_class=Response)
    async def stream(request: Request) -> Response:
        """The parts of /state as server-sent events, each when it changes: `event:` is its name, `data:` the
        part. Of `ranks` {"whole": true, "rows": [...]} replaces all rows, otherwise those given. `event:
        end`: diag ends."""
        try:
            source = await events.listen(asker_of(request).owns_the_run)
        except TooMany:
            raise HTTPException(503, "too many pages look at this run; close one") from None
        return StreamingResponse(source, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    @app.get(
        "/timeline", responses={200: {"model": schema.Timeline}, **schema.REFUSED}, response_class=Response
    )
    async def timeline(
        rank: Annotated[int | None, Query(ge=0, description="of this rank alone, and its GPU")] = None,
    ) -> Response:
        """What the job did over its whole life: phases, steps, GPUs, memory, networks."""
        engine = view.engine
        told = engine.timeline.to_json if rank is None else lambda job: engine.timeline.of_rank(rank, job)
        return Response(json_bytes(await reading(lambda: told(engine.job))), media_type="application/json")

    @app.get(
        "/explain/{finding}",
        responses={200: {"model": schema.Explained}, 404: {"model": schema.Error}, **schema.REFUSED},
        response_class=Response,
    )
    async def explain(
        finding: Annotated[str, Path(description="a finding id, such as hang")],
        lang: Annotated[Literal["en", "zh"], Query(description="language of the page")] = "en",
    ) -> Response:
        """The manual page of a finding: {"id", "lang", "sections": {heading: text}}."""
        sections = manual.sections(finding, lang)
        if not sections:
            raise HTTPException(404, f"there is no finding {finding[:80]!r}; diag explain lists them")
        return Response(
            json_bytes({"id": finding, "lang": lang, "sections": sections}), media_type="application/json"
        )

    return events
