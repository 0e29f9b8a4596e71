from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from .__main__ import _blocks

_FOLDER = Path(__file__).parents[3] / "captures" / "logs" / "swift"


def _entries() -> list[dict[str, str]]:
    return [
        {name: json.loads(value) for name, value in re.findall(r"^[- ] (\w+): (.*)$", block, re.MULTILINE)}
        for block in _blocks(_FOLDER / "cases.yaml")
    ]


def test_each_log_is_in_the_list_and_each_entry_has_its_log() -> None:
    logs = {path.name for path in _FOLDER.iterdir() if path.suffix in (".log", ".gz")}

    assert logs == {entry["log"] for entry in _entries()}


def test_no_log_holds_a_path_of_the_machine_that_made_it() -> None:
    for entry in _entries():
        data = (_FOLDER / entry["log"]).read_bytes()
        text = (gzip.decompress(data) if entry["log"].endswith(".gz") else data).decode(errors="replace")

        assert not re.search(r"/(?:root|home|work)/|/tmp/(?!torchelastic_|pymp-|tmp)", text), entry["log"]
