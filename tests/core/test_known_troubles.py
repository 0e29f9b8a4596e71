"""The catalogue of known troubles: each entry is whole, fits its example, does not fit its negative, and is in the reference;
nothing reads it until somebody asks."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from diag.knowledge.known_troubles import EFFECTS, FILES, Facts, Trouble, apart, at_a_hang, page, troubles
from diag.knowledge.words import page_of
from diag.text.tables import load_table

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "diag" / "knowledge" / "troubles"
ROWS: dict[str, dict[str, Any]] = {
    name: row for file in FILES for name, row in load_table(FOLDER / f"{file}.yaml").items()
}


def facts(row: dict[str, Any]) -> Facts:
    packages = {name: str(version) for name, version in row["packages"].items()}
    return Facts(**{**row, "packages": packages})


def test_files_are_those_of_the_folder_and_no_id_is_in_two() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*FILES}
    assert sum(len(load_table(FOLDER / f"{file}.yaml")) for file in FILES) == len(troubles()) == len(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_entry_is_whole(name: str) -> None:
    row, one = ROWS[name], troubles()[name]
    texts = {"what", "needs", "workaround"} & {*row}

    assert {*row} <= {field.name for field in fields(Trouble)} - {"id"} | {"example", "negative"}
    assert one.effect in EFFECTS
    assert all(str(SpecifierSet(wanted)) for wanted in one.packages.values())
    assert one.sources and all(source.startswith("https://") for source in one.sources)
    assert {*one.zh} == texts, "each text has its Chinese"
    assert one.fixed_in or one.workaround or "no fix known" in one.fix()
    assert not one.what.endswith(".") and not one.needs.endswith(".")


@pytest.mark.parametrize("name", ROWS)
def test_entry_fits_its_example_and_not_its_negative(name: str) -> None:
    assert troubles()[name].fits(facts(ROWS[name]["example"]))
    assert not troubles()[name].fits(facts(ROWS[name]["negative"]))


@pytest.mark.parametrize("name", ROWS)
def test_nothing_of_it_is_taken_for_granted(name: str) -> None:
    example = ROWS[name]["example"]
    without = [key for key in example if key != "packages"]

    assert not troubles()[name].fits(Facts())
    for key in without:
        assert not troubles()[name].fits(facts({k: v for k, v in example.items() if k != key})), key


@pytest.mark.parametrize("name", ROWS)
def test_version_alone_is_never_enough_at_a_hang(name: str) -> None:
    packages = {key: str(version) for key, version in ROWS[name]["example"]["packages"].items()}

    assert [*at_a_hang(Facts(packages, ROWS[name]["example"].get("machine", "")))] == []


def test_only_hangs_are_told_at_a_hang() -> None:
    found = {one.id for name in ROWS for one in at_a_hang(facts(ROWS[name]["example"]))}

    assert {troubles()[name].effect for name in found} == {"hang"}
    assert "nccl-proxy-slots-leak" in found


def test_version_that_cannot_be_read_fits_nothing() -> None:
    assert not any(one.fits(Facts({"nccl": "custom", "torch": ""}, "aarch64")) for one in troubles().values())


@pytest.mark.parametrize("name", ROWS)
def test_explain_has_a_page_on_it(name: str) -> None:
    assert page_of(name)[1] == page(name)
    assert ROWS[name]["sources"][0] in page(name)["Sources"]


@pytest.mark.parametrize("name", ROWS)
def test_sentence_of_a_hang_is_found_again_and_has_its_chinese(name: str) -> None:
    one = troubles()[name]
    said = one.said("NCCL 2.28.9, rank 3: f")

    assert apart(f"Mend it. {said}.") == ("Mend it.", f"{one.said('NCCL 2.28.9, rank 3: f', 'zh')}。")


def test_reference_has_a_row_for_each_entry() -> None:
    text = (ROOT / "docs/reference/known-troubles.md").read_text()

    for one in troubles().values():
        assert f"| [`{one.id}`]({one.sources[0]}) |" in text, (
            f"python -m tests.core.test_known_troubles writes {one.id}"
        )
    assert text.count("\n| [`") == len(troubles()), "a row of an entry that is gone"


def test_help_and_the_detectors_read_nothing_of_it() -> None:
    program = (
        "import sys, json, diag.cli.main, diag.detectors; diag.detectors.make_detectors();"
        "from diag.text.tables import load_table;"
        "from diag.knowledge.known_troubles import troubles;"
        "print(json.dumps([troubles.cache_info().currsize, load_table.cache_info().currsize > 0]))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert json.loads(ran.stdout) == [0, True]


def table() -> str:
    """The rows of the reference."""
    kinds = {"hang": "hangs", "crash": "ends", "wrong": "wrong results", "slow": "slow", "memory": "memory"}
    rows = []
    for one in troubles().values():
        told = page(one.id)
        fits = f"{told['Applies to']}{'; ' + one.needs if one.needs else ''}".replace("|", " or ")
        rows.append(
            f"| [`{one.id}`]({one.sources[0]}) | {kinds[one.effect]} | {fits} | {one.fixed_in or 'not known'} |"
        )
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
