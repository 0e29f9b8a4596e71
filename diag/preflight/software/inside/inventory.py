"""What is installed, and what would be imported from where. Nothing is imported for it; asked by JSON in argv,
answers with JSON.

It runs by `python -c` in CMD's Python; see diag/preflight/software/ask.py.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution


def main() -> None:
    asked = json.loads(sys.argv[1])
    if sys.path[:1] == [""]:  # what CMD will have there instead
        sys.path[:1] = [asked["first"]] if asked["first"] else []
    for folder in asked["before"]:
        sys.path.insert(0, folder)
    from importlib.metadata import distributions

    installed, requires = {}, {}
    for one in distributions():
        head = head_of(one)
        name = re.sub(r"[-_.]+", "-", head.get("name", "")).lower()
        if name and name not in installed:  # the first on sys.path is the one that is imported
            installed[name] = head.get("version", "")
            if name in asked["dists"]:
                requires[name] = list(one.requires or ())
    swift = folders("swift")
    megatron = folders("megatron")
    answer = {
        "executable": sys.executable,
        "python": platform.python_version(),
        "markers": markers(),
        "installed": installed,
        "requires": requires,
        "modules": {name: where(name) for name in asked["modules"]},
        "torch": text([one / "version.py" for one in folders("torch")]),
        "swift_init": text([one / "megatron" / "init.py" for one in swift]),
        "megatron_core": first(megatron, "core"),
        "megatron_core_info": text(
            [one / "core" / "package_info.py" for one in megatron if (one / "core").is_dir()][:1]
        ),
        "megatron_training": first(megatron, "training"),
    }
    Path(asked["out"]).write_text(json.dumps(answer))


def head_of(one: Distribution) -> dict[str, str]:
    """`name` and `version` of its metadata. `one.metadata` parses all of it as an email, each time that it is asked:
    a tenth of a second of CPU for two hundred packages."""
    text = one.read_text("METADATA") or one.read_text("PKG-INFO") or one.read_text("") or ""
    found = re.findall(
        r"^(Name|Version):[ \t]*(.*?)[ \t]*$", text.partition("\n\n")[0], re.IGNORECASE | re.MULTILINE
    )
    return {key.lower(): value for key, value in reversed(found)}  # the first of each


def markers() -> dict[str, str]:
    implementation = sys.implementation.version
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": ".".join(map(str, implementation[:3])),
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "platform_python_implementation": platform.python_implementation(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def spec_of(name: str) -> ModuleSpec | None:
    """Of a top-level module; no code of it is run."""
    from importlib.util import find_spec

    try:
        return find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def where(name: str) -> str | None:
    """The file of a top-level module, or the folder of a namespace package; None where there is none."""
    spec = spec_of(name)
    return None if spec is None else spec.origin or next(iter(spec.submodule_search_locations or ()), None)


def folders(name: str) -> list[Path]:
    spec = spec_of(name)
    return [Path(one) for one in (spec.submodule_search_locations or ())] if spec is not None else []


def first(parents: list[Path], name: str) -> str | None:
    """Of a namespace package each part comes from the first folder that has it: two parts may come from two
    trees."""
    return next((str(parent / name) for parent in parents if (parent / name).is_dir()), None)


def text(paths: list[Path]) -> str:
    for path in paths:
        try:
            return path.read_text(errors="replace")[:100000]
        except OSError:
            pass
    return ""


if __name__ == "__main__":  # as `python -c` has it too
    main()
