"""A send or receive that a rank has begun and keeps nothing of, in a circle of messages: what torch returned for it was let go
of at once, and with it, where the peer is not there yet, the message."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from diag.detectors.hang.partings import path_of
from diag.detectors.hang.verdict import Verdict, others
from diag.model import Confidence
from diag.model.observations import Exchange, Statement
from diag.state.rank_view import RankView
from diag.state.view import JobView
from diag.text.units import format_path

_BEGINS = re.compile(r"(?:[\w.]+\.)?(?P<what>isend|irecv|batch_isend_irecv)\(")
_PEER = re.compile(r"\b(?:dst|src|peer|group_dst|group_src) ?= ?(?P<number>\d+)\b|, ?(?P<second>\d+)\)?$")


def with_message_let_go(verdict: Verdict, job: JobView) -> Verdict:
    """Of a circle in which all receive: somebody has to have sent before. The rank whose code has such a send to the one
    that waits for it, where it is one alone."""
    circle = verdict.collectives.circle if verdict.collectives is not None else None
    if verdict.cause != "messages_do_not_match" or circle is None:
        return verdict
    if any(circle.exchanges[rank].sends for rank in circle.ranks):
        return verdict
    found = {
        number: statement
        for number in circle.ranks
        if (rank := job.ranks.get(number)) is not None
        if (statement := next(_let_go(rank, _waiting_for(number, circle.exchanges, circle.ranks), job), None))
    }
    if len(found) != 1:
        return verdict
    number, one = next(iter(found.items()))
    where = f"{format_path(one.file, job.run.cwd)}:{one.line}"
    words = f"nothing keeps what `{one.text}` ({where}) of rank {number} returns"
    return replace(
        verdict,
        cause="message_let_go",
        culprits=(number,),
        waiting=others(tuple(sorted(verdict.everyone)), (number,)),
        confidence=Confidence.MEDIUM,
        words=words,
    )


def _waiting_for(number: int, exchanges: Mapping[int, Exchange], ranks: tuple[int, ...]) -> set[int]:
    return {rank for rank in ranks if exchanges[rank].peer == number}


def _let_go(rank: RankView, peers: set[int], job: JobView) -> Iterator[Statement]:
    """Statements of functions that it is in, or that only these call, by what was read of its program."""
    functions = {(frame.file, frame.function.rpartition(".")[2]) for frame in path_of(rank.judged)}
    for one in job.program.statements("lets_go"):
        begun = _BEGINS.match(one.text)
        named = _PEER.search(one.text)
        number = int(named["number"] or named["second"]) if named is not None else None
        runs = any((one.file, name) in functions for name in (one.function, *one.called_in))
        if begun is not None and begun["what"] != "irecv" and runs and (number is None or number in peers):
            yield one
