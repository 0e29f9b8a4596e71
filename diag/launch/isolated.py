"""How diag starts its own Python processes: isolated (`python -I`), so that PYTHON* variables, a
sitecustomize, the user's own site folder and the working directory, all of which are the job's, have no say
in them.

Also the script that such a process runs: it makes this very copy of diag importable, behind the standard
library, and runs a module of it. Imports as little as it can: it is on the way of every start.
"""

import os
import sys

_HOME = os.path.abspath(__file__).rpartition("/diag/launch/")[0]  # noqa: PTH100 - no pathlib at start-up
# Of the variables that `python -I` ignores, those that change nothing that diag does.
_HARMLESS = frozenset(
    {"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPYCACHEPREFIX", "PYTHONNOUSERSITE"}
)

_folders = [_HOME]  # where diag lies, and what it needs where that is another place


def argv(module: str, *words: str) -> list[str]:
    """The command line of a process of diag's own: `module` is run as `python -m` would run it.

    >>> argv("diag.agent.sidecar", "{}")[1:]  # doctest: +ELLIPSIS
    ['-I', '.../diag/launch/isolated.py', '...', 'diag.agent.sidecar', '{}']
    """
    if not sys.flags.isolated and len(_folders) == 1:
        from importlib.util import find_spec

        # may come from PYTHONPATH or the user's site folder, as diag itself may
        needed = find_spec("pydantic_settings")
        if needed is not None and needed.origin:
            _folders.append(os.path.dirname(os.path.dirname(needed.origin)))  # noqa: PTH120
    return [sys.executable, "-I", os.path.abspath(__file__), os.pathsep.join(_folders), module, *words]  # noqa: PTH100


def restart(words: "list[str]") -> None:
    """Become `diag WORDS` in an isolated interpreter, where this one is not and a variable of the job may act
    on it.

    The environment stays as it is: CMD gets it. Returns where there is nothing to do, or no such interpreter
    can be started.
    """
    if sys.flags.isolated or not sys.executable:
        return
    if any(name.startswith("PYTHON") and name not in _HARMLESS for name in os.environ):
        try:
            os.execve(sys.executable, argv("diag", *words), given_environment())
        except OSError:
            pass


def given_environment() -> "dict[str, str]":
    """The variables that this process was started with: in a C locale Python adds LC_CTYPE to them (PEP 538),
    also with -I."""
    found = dict(os.environ)
    if "LC_CTYPE" in found:
        try:
            with open(
                "/proc/self/environ", "rb"
            ) as file:  # as exec left it: what is set later lies elsewhere
                given = file.read()
        except OSError:
            return found
        if not any(variable.startswith(b"LC_CTYPE=") for variable in given.split(b"\0")):
            del found["LC_CTYPE"]
    return found


def given_encoding() -> "str | None":
    """What PYTHONIOENCODING or PYTHONUTF8 want of diag's own output, which an isolated interpreter does not
    read; None where that is nothing, or unknown."""
    import codecs

    name = os.environ.get("PYTHONIOENCODING", "").partition(":")[0] or (
        "utf-8" if os.environ.get("PYTHONUTF8") == "1" else ""
    )
    try:
        return codecs.lookup(name).name if name else None
    except LookupError:
        return None


def _reach(folders: "list[str]") -> None:
    """Put these on sys.path unless they are there: before other installed packages, behind the standard
    library, whose modules a package of the same name must not hide."""
    for folder in folders:
        if folder in sys.path:
            continue
        places = [at for at, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
        sys.path.insert(places[0] if places else len(sys.path), folder)


def _main() -> None:
    import runpy

    folders, module = sys.argv[1].split(os.pathsep), sys.argv[2]
    del sys.argv[1:3]
    _reach(folders)
    import diag.launch.isolated  # not this script's own copy  # noqa: PLW0406

    diag.launch.isolated._folders[:] = folders
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
