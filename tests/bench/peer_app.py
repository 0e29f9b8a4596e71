"""The least that serves a page and metrics with the libraries that diag uses: FastAPI, uvicorn, prometheus_client."""

from __future__ import annotations

import sys


def main() -> int:
    import uvicorn
    from fastapi import FastAPI
    from prometheus_client import make_asgi_app

    app = FastAPI()

    @app.get("/")
    def first() -> dict[str, str]:
        return {"hello": "world"}

    app.mount("/metrics", make_asgi_app())
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
    return 0


if __name__ == "__main__":
    sys.exit(main())
