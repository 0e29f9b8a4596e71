"""The routes of the page: its files, what it shows, and how it receives changes."""

import asyncio
import gzip
import os
import re
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse

from diag.outputs import manual
from diag.outputs.http.answers import Reading, answer, answers, content, refusals
from diag.outputs.http.daemon_thread import in_daemon_thread
from diag.outputs.http.events import Events, TooMany, packed
from diag.outputs.http.guard import asker_of
from diag.outputs.http.state import States, accepts_gzip
from diag.outputs.view import parts
from diag.outputs.view.view import HubView

_Ranks = Annotated[
    Literal["rows", "columns"],
    Query(
        description="columns: {count, columns}, each {all}, {of, at} or {each}; numbers as fine as a screen shows"
    ),
]
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
# All that the page needs comes from here; a flame graph is in a frame with a sandbox of its own.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def add_page(app: FastAPI, view: HubView, reading: Reading, written: list[str]) -> Events:
    """The events are to be closed before the server ends. `written`: paths of bundles that dumps wrote."""
    _add_files(app)

    # by the engine's time, after which nothing of it changes by itself
    recorded: dict[float, dict[str, Any]] = {}

    async def look(slow: bool = True) -> dict[str, Any]:
        if view.recorded and (known := recorded.get(view.engine.now)) is not None:
            return dict(known)
        own = await reading(lambda: parts.own_parts(view, slow=slow))
        if view.cluster.takes_digests:
            return await in_daemon_thread(lambda: parts.with_others(own, view, slow=slow))
        found = parts.with_others(own, view, slow=slow)  # no other node, no other lock
        if view.recorded and slow:
            recorded.clear()
            recorded[view.engine.now] = dict(found)
        return found

    events = Events(look)

    states = States(view, look)

    @app.get(
        "/state", responses={**answers("State", 422), 304: {"description": "It is as the ETag given says"}}
    )
    async def state(request: Request, ranks: _Ranks = "rows") -> Response:
        """All that the page shows, at once, at most 1 s old; gzip to who takes it. ETag: of all but `now`."""
        return await states.answer(request, as_columns=ranks == "columns")

    @app.get(
        "/events", responses={**content("A stream without an end", "text/event-stream"), **refusals(422)}
    )
    async def stream(
        request: Request,
        lang: Annotated[
            Literal["en", "zh"], Query(description="zh: with the Chinese of what they say")
        ] = "en",
        ranks: _Ranks = "rows",
    ) -> Response:
        """The parts of /state as server-sent events, each when it changes: `event:` is its name, `data:` the
        part. Of `ranks` {"whole": true, "rows": [...]} replaces all rows, otherwise those given; `rows` may be columns. `event:
        end`: diag ends. `event: chinese` (lang=zh) comes before parts that have any: {part: {English: Chinese}}."""
        try:
            source = await events.listen(asker_of(request).owns_the_run, lang, as_columns=ranks == "columns")
        except TooMany:
            raise HTTPException(503, "too many pages are watching this run; close one") from None
        headers = {"X-Accel-Buffering": "no", "Vary": "Accept-Encoding"}
        if accepts_gzip(request):
            source, headers["Content-Encoding"] = packed(source), "gzip"
        return StreamingResponse(source, media_type="text/event-stream", headers=headers)

    making: list[asyncio.Task[bytes]] = []

    @app.get("/report.html", responses=content("The page as one file", "text/html"))
    async def report_file() -> Response:
        """The page with all that it shows now, as one HTML file of 2 MB at most that opens without diag. Those who
        ask while one is being made get that one."""
        # loaded where it is asked for: manual pages, and the files of the page
        from diag.outputs.one_file import page_file

        if not making or making[0].done():
            work = in_daemon_thread(lambda: page_file(view, f"run {view.run_id}"))
            making[:] = [asyncio.ensure_future(work)]
        body = await asyncio.shield(making[0])
        name = re.sub(r"[^\w.-]", "_", view.run_id, flags=re.ASCII)
        headers = {"Content-Disposition": f'attachment; filename="diag-report-{name}.html"'}
        return Response(body, media_type=_TYPES["html"], headers=headers)

    @app.get(
        "/bundles/{name}", responses={**content("A bundle", "application/gzip"), **refusals(403, 404, 422)}
    )
    async def bundle(request: Request, name: Annotated[str, Path(description="of its file")]) -> Response:
        """A bundle that this diag wrote: by itself when a critical finding was told (`bundle` of a finding), or for
        /dump (`bundle` of its answer)."""
        kept = [*written, *await reading(lambda: [one.path for _, one in view.engine.job.run.evidence])]
        path = next((path for path in kept if path.rpartition("/")[2] == name), None)
        # of recorded evidence the paths are a stranger's
        if view.recorded or path is None or not os.path.isfile(path):  # noqa: PTH113 - our own disk
            raise HTTPException(404, "this diag has written no such bundle, or it was removed")
        if not await asker_of(request).owns_the_run():
            raise HTTPException(403, "bundles are for the user of this run and for bearers of its token")
        return FileResponse(path, media_type="application/gzip", filename=name)

    @app.get("/timeline", responses=answers("Timeline", 422))
    async def timeline(
        rank: Annotated[int | None, Query(ge=0, description="of this rank alone, and its GPU")] = None,
    ) -> Response:
        """What the job did over its whole life: phases, steps, GPUs, memory, networks."""
        engine = view.engine
        drawn = engine.timeline.to_json if rank is None else lambda job: engine.timeline.of_rank(rank, job)
        return answer(await reading(lambda: drawn(engine.job)))

    @app.get("/explain/{finding}", responses=answers("Explained", 404, 422))
    async def explain(
        finding: Annotated[str, Path(description="a finding id, such as hang")],
        lang: Annotated[Literal["en", "zh"], Query(description="language of the page")] = "en",
    ) -> Response:
        """The manual page of a finding: {"id", "lang", "sections": {heading: text}}."""
        sections = manual.sections(finding, lang)
        if not sections:
            raise HTTPException(404, f"unknown finding {finding[:80]!r}; `diag explain` lists them")
        return answer({"id": finding, "lang": lang, "sections": sections})

    return events


def _add_files(app: FastAPI) -> None:
    folder = resources.files("diag.outputs").joinpath("web")
    files = {
        prefix + each.name: each
        for prefix, place in (("", folder), ("vendor/", folder.joinpath("vendor")))
        if place.is_dir()
        for each in place.iterdir()
        if each.is_file() and each.name.rpartition(".")[2] in _TYPES
    }

    small: dict[str, bytes] = {}

    def send(request: Request, name: str) -> Response:
        headers = {"Content-Security-Policy": _POLICY, "Vary": "Accept-Encoding"}
        if accepts_gzip(request):
            headers["Content-Encoding"] = "gzip"
            body = small.get(name) or small.setdefault(
                name, gzip.compress(files[name].read_bytes(), 6, mtime=0)
            )
        else:
            body = files[name].read_bytes()
        return Response(body, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)

    @app.get("/", include_in_schema=False)
    async def page(request: Request) -> Response:
        return send(request, "index.html")

    @app.get("/assets/{name:path}", include_in_schema=False)
    async def asset(request: Request, name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "the page has no such file")
        return send(request, name)
