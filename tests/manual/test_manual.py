"""The pages of the manual: each finding has one in English and one in Chinese, they say the same, and know
every cause."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diag.knowledge import table
from diag.knowledge.env_lint import invented, removed_from_nccl, renamed_in_torch
from diag.outputs import manual
from diag.state.residence import KINDS
from tests.manual.causes_in_code import causes_by_file, findings_of
from tests.test_docs import FINDING_IDS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "diag" / "outputs" / "manual"
PAIRS = sorted(FINDING_IDS)
TRANSLATED = [finding for finding in PAIRS if (FOLDER / "zh" / f"{finding}.md").exists()]


def files(lang: str) -> set[str]:
    return {path.name for path in (FOLDER / lang).iterdir()}


def commands(page: str) -> set[str]:
    """What people copy: words in backticks, flags, variables (with their values in ASCII)."""
    quoted = re.findall(r"`([^`]+)`", page)
    plain = re.sub(r"`[^`]+`", " ", page)
    flags = re.findall(r"(?<![\w-])--[A-Za-z][\w-]*(?:=[\w.:/^-]*\w)?", plain)
    variables = re.findall(r"(?<![\w/])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?:=[\w.:^-]*\w)?", plain)
    return {*quoted, *flags, *variables}


def is_head(text: str) -> bool:
    """Of an item that begins with causes, `- `went_down`, `down` (class)`, not with a command."""
    return re.fullmatch(r"- `\w+`(, `\w+`)*( \([a-z_, ]+\))?", text) is not None


def test_every_finding_has_an_english_page_and_nothing_else_lies_there() -> None:
    wanted = {f"{finding}.md" for finding in FINDING_IDS}

    assert sorted(wanted - files("en")) == [], "write diag/outputs/manual/en/ID.md"
    assert files("en") | files("zh") <= wanted
    assert {path.name for path in FOLDER.iterdir()} - {"__pycache__"} == {"__init__.py", "en", "zh"}


def test_what_is_not_translated_yet_is_shown_in_english(monkeypatch: pytest.MonkeyPatch) -> None:
    read = manual._file
    monkeypatch.setattr(manual, "_copy", lambda lang: None)
    monkeypatch.setattr(manual, "_file", lambda finding, lang: "" if lang == "zh" else read(finding, lang))
    manual.sections.cache_clear()
    try:
        english = manual.sections("shm-too-small", "en")
        assert list(manual.sections("shm-too-small", "zh")) == list(manual.HEADINGS["zh"])
        assert list(manual.sections("shm-too-small", "zh").values()) == list(english.values())
        assert manual.meaning("shm-too-small", "zh") == manual.meaning("shm-too-small", "en")
        assert manual.causes("shm-too-small", "zh") == manual.causes("shm-too-small", "en")
    finally:
        manual.sections.cache_clear()


def test_every_page_is_translated() -> None:
    if missing := sorted({*PAIRS} - {*TRANSLATED}):
        pytest.skip(f"not translated yet, shown in English: {', '.join(missing)} (diag/manual/zh/ID.md)")


@pytest.mark.parametrize("lang", manual.LANGUAGES)
@pytest.mark.parametrize("finding", PAIRS)
def test_page_has_all_sections_in_order_and_each_says_something(finding: str, lang: str) -> None:
    page = manual.sections(finding, lang)

    assert list(page) == list(manual.HEADINGS[lang])
    assert [heading for heading, text in page.items() if len(text) < 3] == []


@pytest.mark.parametrize("finding", TRANSLATED)
def test_chinese_page_has_the_commands_flags_and_variables_of_the_english_one(finding: str) -> None:
    english, chinese = commands(manual.text(finding, "en")), commands(manual.text(finding, "zh"))

    assert sorted(english - chinese) == []
    assert sorted(chinese - english) == []


@pytest.mark.parametrize("finding", TRANSLATED)
def test_chinese_page_has_the_causes_of_the_english_one_line_by_line(finding: str) -> None:
    heads = [
        [line.partition("：" if lang == "zh" else ":")[0] for line in manual.sections(finding, lang)[heading].splitlines()
         if line.startswith("- ")]
        for lang, heading in (("en", "What to do"), ("zh", "怎么办"))
    ]  # fmt: skip

    assert manual.causes(finding, "en") == manual.causes(finding, "zh")
    assert len(heads[0]) == len(heads[1])
    assert [line for line in heads[0] if is_head(line)] == [line for line in heads[1] if is_head(line)]


@pytest.mark.parametrize("lang", manual.LANGUAGES)
@pytest.mark.parametrize("finding", PAIRS)
def test_see_also_names_findings_or_commands_and_the_same_in_both(finding: str, lang: str) -> None:
    words = manual.sections(finding, lang)[manual.HEADINGS[lang][-1]].split(", ")

    assert [word for word in words if not word.startswith("`diag ") and word not in FINDING_IDS] == []
    assert finding not in words
    assert words == manual.sections(finding, "en")["See also"].split(", ")


@pytest.mark.parametrize("finding", TRANSLATED)
def test_chinese_page_is_chinese_and_the_english_one_is_not(finding: str) -> None:
    chinese, english = manual.text(finding, "zh"), manual.text(finding, "en")

    assert re.search(r"[\u4e00-\u9fff]", english) is None
    assert all(
        re.search(r"[\u4e00-\u9fff]", text) for text in list(manual.sections(finding, "zh").values())[:4]
    )
    assert re.search(r"[\u4e00-\u9fff][,;!?]", chinese) is None, "ASCII punctuation behind Chinese"
    assert manual.meaning(finding, "zh").endswith("。")
    assert "\n" not in manual.meaning(finding, "en") + manual.meaning(finding, "zh")


@pytest.mark.parametrize(
    "page", sorted(FOLDER.glob("*/*.md")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_page_is_plain_text(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert text.endswith("\n") and not text.endswith("\n\n")
    assert all(line == line.rstrip() and "\t" not in line for line in text.splitlines())
    assert text.count("`") % 2 == 0


# --- causes


def is_spoken_of(cause: str, pages: list[str]) -> bool:
    """xid_63 is also `xid_N` of a page, and a cause that is made of a number is on a page that has some of
    them."""
    pattern = re.compile(re.sub(r"_(?:\d+|N)$", r"_(?:\\d+|N)", cause))
    return any(pattern.fullmatch(known) for known in pages)


def test_causes_are_collected_from_the_code_of_every_kind() -> None:
    found = causes_by_file()

    # a table, a call of Finding, an argument, an unpacked tuple, a function's return, a name made at run time
    assert "capacity" in found["gpu/oom_cause.py"]
    assert "core_dump" in found["gpu/gpu_fault.py"]
    assert "same_gpu" in found["network/duplicate_gpu.py"]
    assert "went_down" in found["gpu/nvlink_fault.py"]
    assert "wrong_gid_index" in found["network/ib_error.py"]
    assert "dataloader_worker_stopped" in found["hang/rank_wait.py"]
    assert "signal_N" in found["rank_died.py"]
    assert sum(map(len, found.values())) > 180


def test_every_file_with_causes_is_known_to_belong_to_findings() -> None:
    assert [name for name in causes_by_file() if not findings_of(name)] == []
    assert findings_of("hang/rank_wait.py") == findings_of("hang/messages.py") == {"hang", "held-up"}
    assert findings_of("memory/limits.py") == {"shm-too-small", "fd-limit"}
    assert findings_of("network/causes.py") >= {"ib-fallback"}


@pytest.mark.parametrize("lang", manual.LANGUAGES)
@pytest.mark.parametrize("name", sorted(causes_by_file()))
def test_every_cause_that_a_detector_can_give_has_its_line_in_both_pages(name: str, lang: str) -> None:
    pages = [cause for finding in findings_of(name) for cause in manual.causes(finding, lang)]

    assert [cause for cause in sorted(causes_by_file()[name]) if not is_spoken_of(cause, pages)] == []


@pytest.mark.parametrize("lang", manual.LANGUAGES)
def test_every_part_of_a_step_that_can_be_the_cause_of_a_drop_is_spoken_of(lang: str) -> None:
    # which is called communication
    assert {*KINDS} - {"collective"} <= {*manual.causes("throughput-drop", lang)}


@pytest.mark.parametrize("lang", manual.LANGUAGES)
def test_every_harmful_variable_is_spoken_of(lang: str) -> None:
    rows = table("env_lint")["harmful"]
    names = {name.lower() for row in rows for name in (*row["variables"], *row.get("also", ()))}

    assert len(names) > 20
    assert names == {*manual.causes("env-harmful", lang)} - {"preflight"}


@pytest.mark.parametrize("lang", manual.LANGUAGES)
def test_every_known_variable_without_effect_is_spoken_of(lang: str) -> None:
    names = {*invented(), *renamed_in_torch(), *removed_from_nccl()}

    assert len(names) > 50
    assert {name.lower() for name in names} <= {*manual.causes("env-no-effect", lang)}


def test_causes_of_a_page_are_those_of_the_reference_or_of_the_code() -> None:
    """A line for a cause that nobody gives any more would stay for ever."""
    given = {cause for causes in causes_by_file().values() for cause in causes}
    given |= {*KINDS, "unknown", "preflight", "xid_63", "xid_92"}
    told = {finding: manual.causes(finding, "en") for finding in PAIRS if not finding.startswith("env-")}

    assert {
        name: left
        for name, causes in told.items()
        if (left := [cause for cause in causes if cause not in given])
    } == {}
