"""`diag explain` takes the words that diag prints: findings, classes and causes, in the forms in which they
stand there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from diag.cli.main import main
from diag.outputs import manual


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words, "--lang", "en"]) == 0
    return " ".join(capsys.readouterr().out.split())


def first(text: str) -> str:
    return text.partition(" no rank ")[0]


@pytest.mark.parametrize(
    "asked",
    [["hang/data_loading"], ["hang (data_loading)"], ["hang", "data_loading"], ["HANG (Data_Loading)"]],
)
def test_class_of_a_finding_is_its_paragraphs(asked: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, *asked)

    assert first(text) == "hang (data_loading)"
    assert "`dataloader_worker_blocked` (data_loading): look at what the worker reads" in text
    assert "`sigstop`" not in text and "False alarms" not in text
    assert text.endswith("the whole page: diag explain hang")


def test_word_that_several_findings_have_is_told_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, "data_loading")

    assert first(text) == "hang (data_loading)"  # a class there, a cause of the others
    for finding in ("slow", "straggler", "throughput-drop"):
        assert f"{finding} (data_loading)" in text
    assert text.endswith(
        "diag explain hang | diag explain slow | diag explain straggler | diag explain throughput-drop | diag explain held-up"
    )


def test_cause_is_found_without_its_finding(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, "dataloader_worker_blocked")

    assert first(text) == "hang (dataloader_worker_blocked)" and text.count("(data_loading):") == 1


@pytest.mark.parametrize("asked", ["xid_79", "gpu-fault/xid_79", "XID_79"])
def test_number_of_an_xid_is_a_cause(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "79: the GPU fell off the bus" in explained(capsys, asked) or "Bus (79, 167)" in explained(
        capsys, asked
    )


def test_finding_in_capitals_is_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(capsys, "HANG") == explained(capsys, "hang")


def every_word() -> Iterator[tuple[str, str]]:
    for finding in manual.ids():
        for item in manual.advice(finding, "en"):
            yield from ((finding, name) for name in (*item.causes, *item.classes))


def test_every_class_and_cause_of_every_page_is_explained_in_both_languages(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = sorted(set(every_word()))
    assert len(words) > 200

    for finding, name in words:
        for lang in manual.LANGUAGES:
            assert main(["explain", f"{finding} ({name})", "--lang", lang]) == 0, (finding, name)
            assert capsys.readouterr().out.startswith(f"{finding} ("), (finding, name)


def test_json_has_the_page_or_the_paragraphs(capsys: pytest.CaptureFixture[str]) -> None:
    def of(*words: str) -> list[dict[str, object]]:
        assert main(["explain", "--json", "--lang", "en", *words]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["schema"] == "diag.explain/1" and document["asked"] == " ".join(words)
        return list(document["pages"])

    (page,) = of("hang")
    assert set(page["sections"]) >= {"Meaning", "What to do"} and page["advice"] == []  # type: ignore[call-overload]
    (part,) = of("hang/sigstop")
    assert part["sections"] == {} and [item["causes"] for item in part["advice"]] == [["sigstop"]]  # type: ignore[attr-defined]
    assert [page["id"] for page in of()] == manual.ids()
