"""One request to torch's worker server on a UNIX socket, bounded in time and size; the caller chooses what to
request."""

from __future__ import annotations

from pathlib import Path

MAX_BYTES = 16 << 20  # ours: 2,000 entries of the Flight Recorder, torch's default, are 1 MB


class NoAnswer(Exception):
    """`word` says why, as a key of the FAILURES of whoever asks."""

    def __init__(self, word: str, detail: str = "") -> None:
        super().__init__(f"{word}: {detail}")
        self.word, self.detail = word, detail


def ask(path: Path, method: str, target: str, end: float) -> bytes:
    """The answer's body; `end` is on the monotonic clock. Raises NoAnswer."""
    if not path.exists():  # of many ranks: what a request needs takes 2 MB in the process beside each
        raise NoAnswer("no_socket", str(path))
    from http.client import HTTPException

    from diag.sources.collectives.unix_http import UnixConnection

    connection = UnixConnection(path, end)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        body = bytearray()
        while chunk := response.read1(1 << 16):
            body += chunk
            if len(body) > MAX_BYTES:
                raise NoAnswer("too_large", target)
            connection.again()
    except FileNotFoundError:
        raise NoAnswer("no_socket", str(path)) from None
    except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
        raise NoAnswer("gone") from None
    except TimeoutError:
        raise NoAnswer("timed_out", target) from None
    except (OSError, HTTPException) as error:
        raise NoAnswer("failed", f"{target}: {error!r}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise NoAnswer(
            "failed", f"{target}: {response.status} {bytes(body[:200]).decode('utf-8', 'replace')}"
        )
    return bytes(body)
