"""The app, asked through ASGI as a browser or a scraper asks."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from diag.outputs.http.app import create_app

TOKEN = "s3cret"


def ask(hub: Any, path: str, method: str = "GET", host: str = "127.0.0.1", **headers: str) -> httpx.Response:
    async def asked() -> httpx.Response:
        app = create_app(hub, host=host, clock=lambda: 0.0)
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            return await client.request(
                method, path, headers={k.replace("_", "-"): v for k, v in headers.items()}
            )

    return asyncio.run(asked())
