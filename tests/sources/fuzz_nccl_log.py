"""The parser of NCCL's lines under atheris (libFuzzer for Python): python tests/sources/fuzz_nccl_log.py -max_total_time=60."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["diag.sources"]):
    from diag.model import Record
    from diag.observations import NcclFact, NcclLine, Unparsed
    from diag.sources import nccl_log, output
    from diag.sources.output import LineAssembler

_LINES = Path(__file__).resolve().parents[1] / "captures" / "logs" / "nccl" / "lines"


def one_input(data: bytes) -> None:
    for text in data.decode("utf-8", "backslashreplace").split("\n"):
        found = nccl_log.read_line(text, None)
        assert len(found) <= 2 and all(isinstance(fact, (NcclLine, NcclFact)) for fact in found)
    payload = LineAssembler("x").feed(data, final=True)
    if payload is not None:
        assert not any(isinstance(fact, Unparsed) for fact in output.parse(Record(output.SOURCE, payload)))


def main() -> None:
    with tempfile.TemporaryDirectory() as corpus:
        for path in _LINES.glob("*.txt"):
            for number, line in enumerate(path.read_text().splitlines()):
                if not line.startswith(("# ", "    => ")):
                    Path(corpus, f"{path.stem}-{number}").write_text(line)
        atheris.Setup([*sys.argv, corpus], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
