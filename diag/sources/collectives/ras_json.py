"""NCCL RAS's JSON report (NCCL 2.28.7 and later) as communicators. Believes nothing of its types, repairs what
is broken."""

from __future__ import annotations

import json
import re
from typing import Any

from diag.model.observations import RasCommunicator, RasMissing, RasRank
from diag.sources.payload import integer, mapping, sequence, whole, word

IN_PROGRESS = 7  # ncclInProgress of ncclResult_t
_MOST_OPS = 32  # NCCL 2.28 counts five collectives
_DEEPEST = 50  # a report has six levels

# NCCL 2.28.9 leaves out the comma before the status of a missing rank (tests/captures/sources/ras/rank_killed/ras_json.txt):
#           "nvml_dev": 1
#           "status": {
# A value's end, a line break and a quote meet nowhere else: strings of JSON have no line breaks.
_COMMA_LEFT_OUT = re.compile(r'(?<=[\w"}\]])(?=\s*\n\s*")')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[{}\[\]]')


def load(text: str) -> tuple[dict[str, Any], bool]:
    """The report, and whether it is whole. Of one that was cut off: what came before, to its last whole
    member of a list.

    Raises ValueError for what is no JSON object from its beginning.
    """
    try:
        return _report(json.loads(text)), True
    except (ValueError, RecursionError):
        text = _COMMA_LEFT_OUT.sub(",", text)
    try:
        return _report(json.loads(text)), True
    except (ValueError, RecursionError) as error:
        torn = _close(text)
        if torn is None:
            raise ValueError(f"no report in JSON: {error!r}") from None
    try:
        return _report(json.loads(torn)), False
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no report in JSON: {error!r}") from None


def _report(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError("not an object")
    return data


def _close(text: str) -> str | None:
    """Cut behind the last object that is whole and is in a list, and close what is open there."""
    best: tuple[int, str] | None = None
    open_brackets: list[str] = []
    for token in _TOKEN.finditer(text):
        letter = token[0][0]
        if letter in "{[":
            open_brackets.append("}" if letter == "{" else "]")
            if len(open_brackets) > _DEEPEST:
                return None
        elif letter in "}]":
            if not open_brackets or open_brackets.pop() != letter:
                break  # nothing behind it belongs to the report
            if letter == "}" and open_brackets and open_brackets[-1] == "]":
                best = token.end(), "".join(reversed(open_brackets))
    return text[: best[0]] + best[1] if best else None


# --- communicators


def read_communicators(report: dict[str, Any]) -> tuple[RasCommunicator, ...]:
    return tuple(
        _communicator(item) for item in sequence(report.get("communicators")) if isinstance(item, dict)
    )


def _communicator(item: dict[str, Any]) -> RasCommunicator:
    ranks = tuple(_rank(one) for one in sequence(item.get("ranks")) if isinstance(one, dict))
    missing = tuple(_missing(one) for one in sequence(item.get("missing_ranks")) if isinstance(one, dict))
    status, errors = judge(ranks, missing)
    return RasCommunicator(
        word(item.get("hash")).removeprefix("0x"), integer(item.get("size")), ranks, missing, status, errors
    )


def _rank(item: dict[str, Any]) -> RasRank:
    status = mapping(item.get("status"))
    counts = list(mapping(item.get("collective_counts")).items())[:_MOST_OPS]
    return RasRank(
        *_member(item),
        whole(status.get("init_state")),
        whole(status.get("async_error")),
        status.get("finalize_called") is True,
        status.get("destroy_flag") is True,
        status.get("abort_flag") is True,
        tuple((word(name), integer(number)) for name, number in counts),
    )


def _missing(item: dict[str, Any]) -> RasMissing:
    status = mapping(item.get("status"))
    return RasMissing(
        *_member(item),
        unresponsive=status.get("unresponsive") is True,
        considered_dead=status.get("considered_dead") is True,
    )


def _member(item: dict[str, Any]) -> tuple[int, str, int, int | None, int | None]:
    """Its rank, host, pid and devices: what both kinds begin with."""
    devices = whole(item.get("cuda_dev")), whole(item.get("nvml_dev"))
    return integer(item.get("rank")), word(item.get("host")), integer(item.get("pid")), *devices


def judge(ranks: tuple[RasRank, ...], missing: tuple[RasMissing, ...]) -> tuple[str, tuple[str, ...]]:
    """Status and errors of a communicator as NCCL's own text report has them (NCCL 2.32,
    src/ras/client_support.cc)."""
    states = {_status_of(rank) for rank in ranks}
    states |= {"NOCOMM" for one in missing if not (one.unresponsive or one.considered_dead)}
    errors = []
    if any(one.unresponsive or one.considered_dead for one in missing):
        errors.append("INCOMPLETE")
    if any(
        code not in (None, 0, IN_PROGRESS) for rank in ranks for code in (rank.init_state, rank.async_error)
    ):
        errors.append("ERROR")
    if len(states) > 1 or "NOCOMM" in states or len({rank.counts for rank in ranks}) > 1:
        errors.append("MISMATCH")
    order = ("ABORT", "FINALIZE", "RUNNING", "INIT", "NOCOMM")
    return next((state for state in order if state in states), ""), tuple(errors)


def _status_of(rank: RasRank) -> str:
    if rank.abort_flag:
        return "ABORT"
    if rank.finalize_called or rank.destroy_flag:
        return "FINALIZE"
    return "RUNNING" if rank.init_state in (None, 0) else "INIT"
