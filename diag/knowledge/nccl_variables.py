"""The environment variables that NCCL and torch.distributed read, and since which NCCL (nccl_variables.yaml)."""

from __future__ import annotations

from functools import cache

from diag.knowledge import table

Version = tuple[int, ...]


@cache
def nccl_variables() -> dict[str, Version]:
    """Name -> the first version of NCCL that is known to read it."""
    rows = table("nccl_variables")["since"].items()
    return {f"NCCL_{name}": _version(since) for since, names in rows for name in names.split()}


@cache
def removed_from_nccl() -> dict[str, tuple[Version, str]]:
    """Name -> gone since, and what took its place."""
    rows = table("nccl_variables")["removed"].items()
    return {name: (_version(row["since"]), row["instead"]) for name, row in rows}


@cache
def torch_variables() -> frozenset[str]:
    return frozenset(table("nccl_variables")["torch"].split())


@cache
def renamed_in_torch() -> dict[str, tuple[str, str]]:
    """Old name -> the new one, and since which torch."""
    rows = table("nccl_variables")["renamed_in_torch"].items()
    return {old: (row["new"], row["since"]) for old, row in rows}


@cache
def invented() -> dict[str, str]:
    """Names that nothing reads -> what is meant."""
    rows = table("nccl_variables")["invented"]
    return {name: row["instead"] for row in rows for name in row["names"].split()}


def _version(text: str) -> Version:
    return tuple(map(int, text.split(".")))
