"""What a word means that people find in logs and scripts and that is no finding: an environment variable, an Xid, an
errno, a result of NCCL or HCCL, a known trouble. The pages are English; who shows one puts it into another language."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping

from diag.knowledge import known_troubles, table
from diag.knowledge.env_lint import (
    dotted,
    invented,
    lint,
    nccl_variables,
    removed_from_nccl,
    renamed_in_torch,
    torch_variables,
)
from diag.knowledge.xids import advice, xids

Page = dict[str, str]
_XID = re.compile(r"xid[\s_:#]*(\d{1,3})", re.IGNORECASE)
_ERRNO = re.compile(r"\[?errno[\s:=]*(\d{1,3})\]?|(E[A-Z0-9]{2,14})", re.IGNORECASE)
# "NCCL error 2", "HCCL error code 9"; a name alone, ncclSystemError or HCCL_E_TIMEOUT, says which library it is of.
_RESULT = re.compile(
    r"(?P<library>[nh]ccl)\s*(?:error|result)?\s*(?:code)?[\s:=]*(?P<number>\d{1,2})", re.IGNORECASE
)
_RESULTS = {"NCCL": "results", "HCCL": "hccl_results"}  # their tables
_KINDS = {
    "hardware": "a fault of the hardware, firmware or driver",
    "application": "most often the program's own fault; of the hardware where it comes again and again on one GPU alone",
    "consequence": "a consequence: another error comes first",
    "notice": "a notice: nothing broke",
}


def page_of(word: str) -> tuple[str, Page]:
    """Its name as the field writes it, and heading -> text; an empty page where diag knows no such word.

    >>> page_of("xid: 79")[0], page_of("enospc")[0], page_of("[Errno 28]")[0], page_of("nccl error 2")[0]
    ('Xid 79', 'ENOSPC', 'ENOSPC', 'ncclSystemError')
    >>> page_of("HCCL error code 9")[0], page_of("hccl_e_remote")[0], page_of("hccl error 99")[0]
    ('HCCL_E_TIMEOUT', 'HCCL_E_REMOTE', '')
    >>> page_of("hello")
    ('', {})
    """
    readers = (_xid, _errno, _result, _variable, _trouble)
    return next((found for reader in readers if (found := reader(word.strip()))[1]), ("", {}))


def line_with(name: str) -> str:
    """A line as a log has it, of which the findings are asked; empty where there is none to tell.

    >>> line_with("ENOSPC"), line_with("NCCL_NET")
    ('OSError: [Errno 28] No space left on device', '')
    """
    number = getattr(errno, name, None) if name.startswith("E") else None
    return f"OSError: [Errno {number}] {os.strerror(number)}" if isinstance(number, int) else ""


def known_variables() -> Mapping[str, Mapping[str, str]]:
    """Name -> what it sets, what is seen where it is wrong, and of some who reads it."""
    return {**table("variables")["variables"], **table("trainer_variables")["variables"]}


def names() -> list[str]:
    """What a misspelt word may be."""
    return [
        *known_variables(),
        *nccl_variables(),
        *torch_variables(),
        *(name for results in _RESULTS.values() for name in table("variables")[results]),
        *known_troubles.troubles(),
    ]


def _trouble(word: str) -> tuple[str, Page]:
    found = known_troubles.page(word.lower())
    return (word.lower() if found else ""), found


def _xid(word: str) -> tuple[str, Page]:
    match = _XID.fullmatch(word)
    xid = xids().get(int(match[1])) if match else None
    if xid is None:
        return "", {}
    return f"Xid {xid.number}", {
        "Meaning": f"{xid.meaning}; {_KINDS[xid.kind]}.",
        "What to do": advice(xid.action),
        "See also": "gpu-fault",
    }


def _errno(word: str) -> tuple[str, Page]:
    match = _ERRNO.fullmatch(word)
    if not match:
        return "", {}
    name = errno.errorcode.get(int(match[1])) if match[1] else match[2].upper()
    number = getattr(errno, name or "", None)
    if not isinstance(number, int):
        return "", {}
    return str(name), {"Meaning": f"errno {number}: {os.strerror(number)}."}


def _result(word: str) -> tuple[str, Page]:
    match = _RESULT.fullmatch(word)
    asked = (match["library"].upper(), int(match["number"])) if match else None
    for library, results in _RESULTS.items():
        for name, row in table("variables")[results].items():
            if word.lower() == name.lower() or asked == (library, row["number"]):
                meaning = f"{library}'s result {row['number']}: {row['means']}."
                return name, {"Meaning": meaning, "What to do": f"{row['do']}."}
    return "", {}


def _variable(word: str) -> tuple[str, Page]:
    """NAME, or NAME=VALUE, of which the value is judged too."""
    name, _, value = word.removeprefix("export ").partition("=")
    name, value = name.strip().upper(), value.strip().strip("'\"")
    known = known_variables().get(name, {})
    judged = lint({name: value}, nodes=None, nccl_version=None, rdma=None)
    page = {
        "Meaning": f"{known['sets']}." if known else "",
        "Read by": "; ".join(read_by(name)),
        "If it is wrong": f"{known['wrong']}." if known else "",
        f"With {value}": "\n".join(f"{one.does}; {one.instead}." for one in judged),
    }
    page = {heading: text for heading, text in page.items() if text}
    return (name, page) if page else ("", {})


def read_by(name: str) -> Iterator[str]:
    """Who reads a variable, and since which version; nothing for one that no table has."""
    if name in nccl_variables():
        since = nccl_variables()[name]
        older = " (older ones were not checked)" if since == (2, 13) else ""
        yield f"NCCL {dotted(since)} and newer{older}"
    if name in removed_from_nccl():
        gone, instead = removed_from_nccl()[name]
        yield f"no NCCL since {dotted(gone)}" + (f": {instead}" if instead else "")
    if name in renamed_in_torch():
        new, version = renamed_in_torch()[name]
        yield f"torch, by its old name: {new} since torch {version}"
    elif name in torch_variables():
        yield "torch"
    if name in invented():
        yield f"nothing: {invented()[name]}"
    if by := known_variables().get(name, {}).get("by"):
        yield by
