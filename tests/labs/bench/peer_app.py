"""The least that serves a page and metrics with the libraries that diag uses: FastAPI, uvicorn,
prometheus_client.

`python -m tests.labs.bench.peer_app PORT [SERIES]`.
"""

from __future__ import annotations

import sys

_RANKS = 8


def main() -> int:
    import uvicorn
    from fastapi import FastAPI
    from prometheus_client import Gauge, make_asgi_app

    app = FastAPI()
    for number in range(int(sys.argv[2]) // _RANKS if len(sys.argv) > 2 else 0):
        gauge = Gauge(f"peer_value_{number}", "One of many.", ["rank"])
        for rank in range(_RANKS):
            gauge.labels(str(rank)).set(number * 1.5)

    @app.get("/")
    def first() -> dict[str, str]:
        return {"hello": "world"}

    app.mount("/metrics", make_asgi_app())
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
    return 0


if __name__ == "__main__":
    sys.exit(main())
