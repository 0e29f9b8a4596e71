"""A real run with secrets all over, for the tests beside this: what they are, and how to look at what it
keeps and answers."""

from __future__ import annotations

import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from tests.liverun import LiveRun

__all__ = ["IN_ENVIRONMENT", "IN_WORDS", "RANKS", "TOKEN", "get", "kept", "processes", "unpacked"]

RANKS = [sys.executable, str(Path(__file__).parent.parent / "live/ranks.py")]
TOKEN = "diagtoken-5f1c0e4a9b"
IN_ENVIRONMENT = {
    "HF_TOKEN": "hf_s3cretvalue", "WANDB_API_KEY": "wandb-s3cretvalue", "AWS_SECRET_ACCESS_KEY": "aws-s3cretvalue",
    "NCCL_AUTH_SECRET": "nccl-s3cretvalue", "MY_PASSWORD": "pass-s3cretvalue", "HTTPS_PROXY": "http://user:proxy-s3cretvalue@p:3128",
    "MY_OWN_VARIABLE": "own-s3cretvalue", "DIAG_FAULT_NOTE": "note-s3cretvalue",
}  # fmt: skip
IN_WORDS = ["--hub_token", "word-s3cretvalue", "--wandb_api_key=key-s3cretvalue", "--dataset",
            "https://user:url-s3cretvalue@example.org/data?X-Amz-Signature=sig-s3cretvalue"]  # fmt: skip


def get(live: LiveRun, path: str, token: str | None = None) -> bytes:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with opener.open(
        urllib.request.Request(live.run_json()["url"] + path, headers=headers), timeout=15
    ) as answer:
        body: bytes = answer.read()
    return body


def unpacked(body: bytes) -> bytes:
    """What is there of a journal that is still written: it has no end yet."""
    return zlib.decompressobj(31).decompress(body)


def kept(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All that lies in a run directory, unpacked. Sockets and FIFOs hold nothing."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        if path.name.endswith(".tar.gz"):
            with tarfile.open(path) as tar:
                for member in tar:
                    file = tar.extractfile(member)
                    body = file.read() if file else b""
                    yield (
                        f"{path.name}/{member.name}",
                        unpacked(body) if member.name.endswith(".gz") else body,
                    )
        elif path.name.endswith(".gz"):
            yield path.name, unpacked(path.read_bytes())
        else:
            yield path.name, path.read_bytes()


def processes(live: LiveRun) -> list[psutil.Process]:
    """The carrier, the hub, its helpers, the job's ranks."""
    live.run_json()
    return [psutil.Process(live.process.pid), *live.tree()]
