"""What makes an expression come to another value on each rank, as its text shows: by the interpreter's and the libraries' own
meaning of what it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

# From what no two processes need have alike to what each rank was given on purpose.
KINDS = (
    "unordered",  # the order of a set
    "hash",  # hash() or id()
    "random",  # a generator that the whole process draws from
    "signal",  # set by a handler of signals
    "counted",  # something counted under a condition
    "clock",
    "data",  # a number that a tensor came to
    "fallback",  # taken where something raised
    "file",  # what a look at the file system finds
    "process",  # its host, its pid
    "rank",  # the rank's number
    "parameter",  # what the function was called with
)

OF_RANK = re.compile(
    r"rank|main_process|is_main|is_master|(?:global|process)_zero|is_leader|is_chief|coordinator", re.I
)
# torch.distributed, 1.8-2.13
_AGREES = re.compile(r"(?:all_(?:reduce|gather)|broadcast)(?:_\w+)?")
# random and numpy.random; of torch what takes its default generator
_DRAWS = (
    "random", "randint", "randrange", "choice", "choices", "sample", "shuffle", "uniform", "gauss", "normalvariate", "triangular",
    "betavariate", "expovariate", "rand", "randn", "permutation", "normal", "standard_normal",
)  # fmt: skip
_TORCH_DRAWS = ("rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal", "poisson")
_LOOKS = (
    "exists", "lexists", "is_file", "is_dir", "isfile", "isdir", "glob", "iglob", "rglob", "iterdir", "listdir", "scandir", "stat",
    "getsize", "getmtime", "access",
)  # fmt: skip
_RANDOM = ("random", "np.random", "numpy.random")
_CLOCKS = ("time.time", "time.monotonic", "time.perf_counter", "datetime.now", "datetime.datetime.now")
# The environment is mostly the same on all ranks, but for these.
_RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GLOBAL_RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "SLURM_PROCID",
    "OMPI_COMM_WORLD_RANK",
)
_PROCESS = (
    "uuid.uuid1", "uuid.uuid4", "tempfile.mkdtemp", "tempfile.mktemp", "os.getpid", "socket.gethostname", "platform.node",
    "os.cpu_count",
)  # fmt: skip
_REDUCED = ("sum", "mean", "max", "min", "any", "all", "norm", "numel", "nonzero", "isnan", "isfinite")
_GENERATORS = ("generator", "rng", "g")


def kinds_of(node: ast.expr, shared: Collection[str] = ()) -> Iterator[str]:
    """Of what it names itself, but for the names that are `shared`."""
    found = set()
    for part in ast.walk(node):
        if agrees(part):
            return
        named = part.func if isinstance(part, ast.Call) else part
        if not isinstance(named, ast.expr) or dotted(named).partition(".")[0] not in shared:
            found |= set(_of_part(part))
    yield from (kind for kind in KINDS if kind in found)


def _of_part(part: ast.AST) -> Iterator[str]:
    if isinstance(part, ast.Name | ast.Attribute):
        name = part.id if isinstance(part, ast.Name) else part.attr
        if OF_RANK.search(name):
            yield "rank"
    elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value in _RANK_VARIABLES:
        yield "rank"
    if isinstance(part, ast.Call):
        yield from _of_call(part)


def _of_call(call: ast.Call) -> Iterator[str]:
    called = dotted(call.func)
    owner, dot, name = called.rpartition(".")
    inner = call.args[0] if call.args else None
    reduced = (
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _REDUCED
    )
    found = {
        "hash": called in ("hash", "id"),
        "random": (owner in _RANDOM and name in _DRAWS)
        or (owner == "torch" and name in _TORCH_DRAWS and not _has_generator(call)),
        "clock": called in _CLOCKS,
        "process": called in _PROCESS,
        "file": bool(dot) and name in _LOOKS,
        "data": (bool(dot) and name in ("item", "isnan", "isinf", "isfinite"))
        or (called in ("int", "float", "bool") and reduced),
    }
    return (kind for kind, is_one in found.items() if is_one)


def draws(node: ast.AST) -> bool:
    """From a generator that the whole process shares."""
    return "random" in _of_part(node)


def _has_generator(call: ast.Call) -> bool:
    return any(one.arg in _GENERATORS for one in call.keywords)


def dotted(node: ast.expr) -> str:
    """ "self.flag.exists"; of what a call or an index gave ".exists"."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    names.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(names))


def agrees(node: ast.AST) -> bool:
    """A call after which all ranks have the same, by the name that such calls have."""
    return isinstance(node, ast.Call) and _AGREES.fullmatch(dotted(node.func).rpartition(".")[2]) is not None


def makes_unordered(node: ast.expr) -> bool:
    """A set, whose order is that of its items' hashes."""
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("set", "frozenset")
    )


def is_container(node: ast.expr | None) -> bool:
    """That grows and shrinks in place."""
    if isinstance(node, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.SetComp | ast.DictComp):
        return True
    called = dotted(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    return called in (
        "list",
        "dict",
        "set",
        "deque",
        "Counter",
        "defaultdict",
        "OrderedDict",
        "bytearray",
        "Event",
    )


def of_many(node: ast.expr) -> ast.expr:
    """What is gone over in its own order: `x` of `list(x)` and `enumerate(x)`."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("list", "tuple", "enumerate", "iter", "tqdm")
        and node.args
    ):
        node = node.args[0]
    return node


def is_filtered(node: ast.expr) -> bool:
    """It leaves out what does not meet a condition."""
    return (
        isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp)
        and any(one.ifs for one in node.generators)
    ) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "filter")
