import json
from pathlib import Path

import pytest

from diag.job import assets


def test_assets_are_made_once_and_are_the_same_in_another_folder(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")

    first = assets.make(tmp_path / "a")
    written = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    assets.make(first)
    second = assets.make(tmp_path / "b")

    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == written
    for path in first.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()


def test_an_interrupted_folder_is_completed(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    (tmp_path / "pairs.jsonl").write_text('{"mess')

    assets.make(tmp_path)

    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len(rows) == 512


def test_pairs_differ_in_the_answer_only() -> None:
    rows = list(assets.pairs())

    assert len(rows) == 512
    assert all(prompt == f"Repeat exactly: {chosen}" for prompt, chosen, _ in rows)
    assert sum(chosen == rejected for _, chosen, rejected in rows) <= 1
