"""How NCCL reads names and files: lists of interfaces and devices, nccl.conf. Pure rules, for judging and for
preflight."""

from __future__ import annotations

_LONGEST = 1023  # characters of a name and of a value


def matches(name: str, spec: str, port: int | None = None) -> bool:
    """NCCL's filter of names in NCCL_SOCKET_IFNAME and NCCL_IB_HCA: prefixes, with `=` whole names, with `^`
    what not.

    Of NCCL_IB_HCA each may have a port: "mlx5_0:1".

    >>> matches("eth0", "eth"), matches("eth0", "=eth"), matches("docker0", "^docker,lo"), matches("mlx5_1", "mlx5_1:2", 1)
    (True, False, False, False)
    >>> matches("mlx5_10", "mlx5_1"), matches("mlx5_10", "=mlx5_1"), matches("eth0", "^=eth0")
    (True, False, False)
    """
    excluded = spec.startswith("^")
    spec = spec[1:] if excluded else spec
    exact = spec.startswith("=")
    spec = spec[1:] if exact else spec
    wanted = [word.partition(":") for word in spec.split(",") if word.partition(":")[0]]
    if not wanted:
        return not excluded  # NCCL takes an empty list for "all"
    found = False
    for prefix, _, text in wanted:
        same = name == prefix if exact else name.startswith(prefix)
        of_port = port is None or not text or (text.isdecimal() and int(text) == port)
        found = found or (same and of_port)
    return found != excluded


def parse_conf(text: str) -> dict[str, str]:
    """Lines NAME=VALUE of an nccl.conf, the first of each name, as they are (src/misc/param.cc): quotes and
    blanks stay.

    >>> parse_conf("# comment\\nNCCL_DEBUG=WARN\\nNCCL_SOCKET_IFNAME==ens1f0\\nNCCL_DEBUG=INFO\\n indented\\n")
    {'NCCL_DEBUG': 'WARN', 'NCCL_SOCKET_IFNAME': '=ens1f0'}
    """
    found: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name[:_LONGEST], value[:_LONGEST])
    return found
