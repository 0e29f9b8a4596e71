"""The route of a dump: evidence of every rank, read now."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request
from starlette.responses import Response

from diag.outputs.http.answers import answer, answers
from diag.outputs.http.flame_routes import NOT_YOURS
from diag.outputs.http.guard import asker_of
from diag.outputs.terminal.text import dump_text
from diag.outputs.view.view import HubView
from diag.text.units import format_seconds

_DUMP_SECONDS = 10.0  # contracts: complete or explained within 10 s
_LONGEST_DUMP_SECONDS = 60.0
_DUMP_GRACE_SECONDS = 3.0  # past its own deadline a dump is broken, and its caller must hear of it
_RECORDED = {
    "detail": "recorded evidence: there is no live process to read",
    "hint": "its stacks are on the page, and in `diag replay`",
}


def add_dump(app: FastAPI, view: HubView) -> None:
    dumps: dict[str, asyncio.Task[dict[str, Any]]] = {}
    dumped = answers("Dump", 409, 422, 504)

    @app.get("/dump", responses=dumped, response_class=Response)
    @app.post("/dump", responses=dumped, response_class=Response)
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
        if not columns or "report" not in document:
            return answer(document)
        return answer({**document, "screen": dump_text(document, colour=colour, width=columns, lang=lang)})
