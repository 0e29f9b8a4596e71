"""The copies of diag's own YAML and manual that come with the package: they say the same, and only of the same files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from diag.cli.compiling import compile_all
from diag.detectors.rules import load
from diag.outputs import manual
from diag.text.compiled import PACKAGE, RULES, compiled, name_of, rule_sources, survives, write


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compiled")
    assert compile_all(folder) > 60
    return folder


def test_copy_of_each_table_says_what_its_yaml_says(copies: Path) -> None:
    tables = {name_of(path): path for path in PACKAGE.rglob("*.yaml") if "_data" not in path.parts}
    without = []
    for name, path in tables.items():
        found, value = (
            compiled(name, [path.read_bytes()], copies),
            yaml.load(path.read_bytes(), yaml.CSafeLoader),
        )
        if found is None:
            without.append(name)
        else:
            assert found == value, name

    assert len(tables) == len({*tables}) > 60
    assert len(without) < 5  # numbers as keys: JSON has none


def test_rules_are_the_same_from_their_copy_and_from_their_files(
    copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compiled(RULES, rule_sources(load.packaged_folder()), copies)
    monkeypatch.setattr(load, "compiled", lambda *words: found)
    from_copy = load.packaged.__wrapped__()
    monkeypatch.setattr(load, "compiled", lambda *words: None)
    from_files = load.packaged.__wrapped__()

    assert found is not None
    assert from_copy.rules == from_files.rules


@pytest.mark.parametrize("bad", [[{"id": 3}], [1], {}, "x"])
def test_copy_that_holds_no_rules_is_not_used(bad: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "compiled", lambda *words: bad)

    assert len(load.packaged.__wrapped__().rules) > 300


@pytest.mark.parametrize("lang", manual.LANGUAGES)
def test_pages_are_the_same_from_their_copy(copies: Path, lang: str) -> None:
    found = compiled(manual.copy_of(lang), manual.sources(lang), copies)

    assert found["ids"] == manual._ids()
    assert found["pages"] == {name: manual._sections(name, lang) for name in found["ids"]}
    assert [[*page] for page in found["pages"].values()] == [
        [*manual._sections(name, lang)] for name in found["ids"]
    ]


def test_copy_counts_only_for_the_very_files_that_it_was_made_of(tmp_path: Path) -> None:
    write(tmp_path, "one", [b"a: 1", b"b: 2"], {"a": 1})

    assert compiled("one", [b"a: 1", b"b: 2"], tmp_path) == {"a": 1}
    assert compiled("one", [b"a: 1", b"b: 3"], tmp_path) is None
    assert compiled("one", [b"a: 1"], tmp_path) is None
    assert compiled("two", [b"a: 1"], tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"of": 1}', "null", "\x00"])
def test_damaged_copy_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text(text)

    assert compiled("one", [b"a: 1"], tmp_path) is None


def test_what_json_cannot_say_has_no_copy() -> None:
    assert survives({"a": [1, 2.5, None, True, "ä"]})
    assert not survives({79: "a number as key"})
    assert not survives(yaml.safe_load("day: 2026-01-02"))


def test_manual_page_needs_no_detector_where_the_pages_are_ready(copies: Path) -> None:
    # given a process that reads these copies
    code = (
        "import sys; from pathlib import Path; from diag.text import compiled as at\n"
        "own = at.compiled; folder = Path(sys.argv.pop(1))\n"
        "import diag.outputs.manual as manual; manual.compiled = lambda name, sources: own(name, sources, folder)\n"
        "from diag.cli.main import main; main()\n"
        "print(*sorted({'yaml', 'diag.detectors', 'diag.knowledge.words', 'diag.engine.replay'} & set(sys.modules)))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(copies), "explain", "hang"],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip

    assert done.stdout.startswith("hang\n====")
    assert done.stdout.splitlines()[-1] == ""
