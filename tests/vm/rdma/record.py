"""Keeps what the machine shows as captures for ordinary tests: `python -m tests.vm.rdma.record [ANSWERS]`
(else it boots).

Writes below tests/captures/sources/rdma; addresses there are of documentation networks already.
"""

from __future__ import annotations

import base64
import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.vm import image, machine

FOLDER = image.REPOSITORY / "tests" / "captures" / "sources" / "rdma"
# What a process showed; of its status only what the sources read and what belongs to it.
_KEPT = ("said", "stderr", "payload", "limits", "fds")
_STATUS = ("Uid:", "VmLck:", "VmPin:", "CapEff:")


def main(words: list[str]) -> None:
    if words:
        parts = machine.read(Path(words[0]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            parts = machine.run(image.image(), Path(folder), 600).parts
    results = {name: part["result"] for name, part in parts.items() if "result" in part}
    FOLDER.mkdir(parents=True, exist_ok=True)
    ports = results["ports"]
    _write_tree("sysfs_up.txt", ports["tree"])
    _write_tree("sysfs_down.txt", ports["tree_down"])
    (FOLDER / "ibv_devinfo.txt").write_text(ports["devinfo"])
    (FOLDER / "ibv_devinfo_down.txt").write_text(ports["devinfo_down"])
    (FOLDER / "ib_write_bw.txt").write_text(results["traffic"]["client"])
    _write_json("ports.json", {when: ports[when]["payload"] for when in ("up", "down", "up_again")})
    _write_json("traffic.json", {when: {what: results["traffic"][when][what]["payload"] for what in ("ports", "networks")}
                                 for when in ("before", "after")})  # fmt: skip
    processes = {
        name: _process(seen) for name, seen in (results["processes"] | results["containers"]).items()
    }
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(shown)}" for name, shown in processes.items())
    (FOLDER / "processes.json").write_text("{\n" + rows + "\n}\n")
    (FOLDER / "maps.txt").write_text(results["processes"]["user_unlimited"]["maps"])
    for name, result in results.items():
        if name.startswith("run:"):
            _write_journal(name.removeprefix("run:"), result["run"])


def _process(seen: dict[str, Any]) -> dict[str, Any]:
    kept = {name: seen[name] for name in _KEPT}
    kept["limits"] = seen["limits"]["payload"]
    kept["status"] = [line for line in seen["status"].splitlines() if line.startswith(_STATUS)]
    return kept


def _write_tree(name: str, tree: dict[str, str]) -> None:
    """A file a line: PATH = TEXT; of one that cannot be read PATH ! ERROR."""
    lines = [
        f"rxe0/{path} " + (f"! {text[1:]}" if text.startswith("!") else f"= {text.strip()}")
        for path, text in tree.items()
    ]
    (FOLDER / name).write_text("\n".join(line.rstrip() for line in lines) + "\n")


def _write_json(name: str, data: Any) -> None:
    (FOLDER / name).write_text(json.dumps(data, indent=1) + "\n")


def _write_journal(scenario: str, packed: str) -> None:
    """A run of some seconds has one journal file."""
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(packed))) as tar:
        (member,) = [member for member in tar if Path(member.name).name.startswith("journal-")]
        file = tar.extractfile(member)
        assert file is not None
        (FOLDER / f"journal-{scenario}.jsonl.gz").write_bytes(file.read())


if __name__ == "__main__":
    main(sys.argv[1:])
