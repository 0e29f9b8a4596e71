"""Flame graphs over HTTP, and bodies that are too long."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from diag.model.observations import RankExited
from diag.outputs.http.app import create_app
from diag.text.errors import DiagError
from tests.outputs.asking import TOKEN, ask


def test_flame_graph_of_a_rank_is_asked_of_the_hub_with_what_was_wanted(hung: Any) -> None:
    answer = ask(hung, "/ranks/3/flame?seconds=2&rate=20&format=speedscope&children=true")

    assert (
        answer.text
        == "753 FlameWanted(seconds=2.0, rate=20, form='speedscope', children=True, native=False, by_owner=False)"
    )
    assert answer.headers["content-type"] == "application/json"


def test_flame_graph_reaches_nothing_of_ours_when_a_browser_opens_it(hung: Any) -> None:
    for path in ("/ranks/3/flame", "/flame"):
        answer = ask(hung, path)

        assert answer.headers["content-type"].startswith("image/svg+xml")
        assert answer.headers["content-security-policy"].startswith(
            "sandbox allow-scripts; default-src 'none'"
        )


def test_flame_graph_of_all_ranks_has_their_ranges(hung: Any) -> None:
    text = ask(hung, "/flame?format=collapsed").text

    assert "all_reduce (torch/distributed/distributed_c10d.py:3173) [0-2] 3\n" in text


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/ranks/9/flame", 404, "seen: ranks 0-3"),
        ("/ranks/3/flame?format=exe", 422, "format"),
        ("/ranks/3/flame?seconds=0", 422, "seconds"),
        ("/ranks/3/flame?rate=100000", 422, "rate"),
        ("/ranks/x/flame", 422, "rank"),
    ],
)
def test_flame_graph_that_cannot_be_made_is_refused_with_the_reason(
    hung: Any, path: str, status: int, said: str
) -> None:
    answer = ask(hung, path)

    assert answer.status_code == status and said in answer.text


def test_flame_graph_of_an_ended_rank_points_to_what_was_recorded(hung: Any) -> None:
    hung.tell(1041.0, RankExited(3, 753, None, 9, "pidfd"))

    answer = ask(hung, "/ranks/3/flame")

    assert answer.status_code == 409
    assert answer.json() == {
        "detail": "rank 3 has ended",
        "hint": "its recorded stacks: diag flame 3 --from RUN_DIR",
    }


def test_flame_graph_that_fails_says_why_and_what_to_do(hung: Any) -> None:
    hung.flame_error = DiagError("ptrace is not permitted", hint="give SYS_PTRACE")

    answer = ask(hung, "/ranks/3/flame")

    assert (answer.status_code, answer.json()["hint"]) == (503, "give SYS_PTRACE")


@pytest.mark.parametrize("path", ["/flame", "/ranks/3/flame"])
def test_flame_graph_needs_the_token_beyond_loopback_and_no_page_of_another_site(
    hung: Any, path: str
) -> None:
    hung.token = TOKEN
    hung.bound_beyond_loopback = True
    assert ask(hung, path).status_code == 401
    assert ask(hung, path, authorization=f"Bearer {TOKEN}").status_code == 200

    hung.bound_beyond_loopback = False
    assert ask(hung, path, sec_fetch_site="cross-site", sec_fetch_mode="navigate").status_code == 403


@pytest.mark.parametrize(
    ("joined", "megabytes", "status"), [(False, 0, 409), (False, 65, 409), (True, 65, 422)]
)
def test_body_that_is_too_long_for_a_digest_is_not_kept(
    hung: Any, joined: bool, megabytes: int, status: int
) -> None:
    hung.cluster.takes_digests = joined
    read = 0

    async def post() -> httpx.Response:
        async def parts() -> Any:
            nonlocal read
            for _ in range(max(1, megabytes) + 20):
                read += 1
                yield b" " * (1 << 20)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=create_app(hung))) as client:
            return await client.post("http://127.0.0.1/digests", content=parts())

    assert asyncio.run(post()).status_code == status
    assert read <= 66
