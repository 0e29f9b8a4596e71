"""How NCCL reads lists of interfaces and devices: NCCL_SOCKET_IFNAME, NCCL_IB_HCA. Pure rules, for judging and for preflight."""

from __future__ import annotations

__all__ = ["selects"]


def selects(wanted: str, name: str, port: int | None = None) -> bool:
    """Whether a list such as NCCL_IB_HCA selects this device (and port). NCCL 2.18-2.30, src/misc/utils.cc (parseStringList).

    A prefix is enough unless the list begins with `=`; `^` excludes what it names; `:PORT` narrows to one port.

    >>> selects("mlx5", "mlx5_0", 1), selects("=mlx5_1", "mlx5_10", 1), selects("^mlx5_0", "mlx5_1", 1)
    (True, False, True)
    >>> selects("mlx5_0:2", "mlx5_0", 1)
    False
    """
    wanted = wanted.strip()
    excludes = wanted.startswith("^")
    wanted = wanted.removeprefix("^")
    exact = wanted.startswith("=")
    parts = [part.strip() for part in wanted.removeprefix("=").split(",") if part.strip()]
    if not parts:
        return not excludes  # as NCCL does it: `^` alone excludes everything
    return any(_names(part, name, port, exact) for part in parts) is not excludes


def _names(part: str, name: str, port: int | None, exact: bool) -> bool:
    device, _, number = part.partition(":")
    if number.isdecimal() and port is not None and int(number) != port:
        return False
    return name == device if exact else name.startswith(device)
