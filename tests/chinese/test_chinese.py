"""Chinese where people read, with every value of the English; English where nobody asked for Chinese."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from diag.cli.main import main
from diag.outputs.chinese import by_line, catalogue, in_chinese, of_finding, po, whole
from diag.outputs.chinese.templates import Catalogue, Template, places, plain_places
from diag.outputs.chinese.values import SILENT, lost, stem
from diag.outputs.terminal.text import dump_text
from tests.chinese import LEFT, in_code, left, texts
from tests.chinese.commands import said_in, without_chinese

CAPTURES = Path(__file__).parents[1] / "captures"
FOLDER = Path(po.__file__).parent
CATALOGUES = sorted(FOLDER.rglob("*.po"))
NAMES = [str(path.relative_to(FOLDER).with_suffix("")) for path in CATALOGUES]
# What other branches may add before somebody translates it.
MARGIN = 15


def test_no_value_of_a_captures_texts_is_lost() -> None:
    missing = {english: lost(english, shown) for _, english, shown in set(texts()) if lost(english, shown)}

    assert missing == {}


def test_texts_without_chinese_grow_no_more() -> None:
    found, kept = left(), int(LEFT.read_text())

    assert len(found) <= kept + MARGIN, f"give these Chinese in diag/outputs/chinese/*.po: {found}"
    assert len(found) >= kept - MARGIN, "fewer are left: python -m tests.chinese writes the number"


def test_sentences_of_the_code_without_chinese_grow_no_more() -> None:
    found, kept = in_code.without_entry(), int(in_code.LEFT.read_text())

    assert len(found) <= kept, f"give these Chinese in diag/outputs/chinese/*.po: {found}"
    assert len(found) >= kept - MARGIN, "fewer are left: python -m tests.chinese.in_code writes the number"


@pytest.mark.parametrize("path", CATALOGUES, ids=NAMES)
def test_entry_of_a_catalogue_has_the_places_of_its_english(path: Path) -> None:
    entries = list(po.read(path.read_text(encoding="utf-8")))

    assert entries
    loose = path.parent != FOLDER
    if loose:
        entries = [(plain_places(english), plain_places(chinese)) for english, chinese in entries]
    for english, chinese in entries:
        needed = {name for name in places(english) if loose or stem(name) not in SILENT}
        assert set(places(chinese)) == needed, english


@pytest.mark.parametrize("folder", sorted({path.parent for path in CATALOGUES}), ids=lambda path: path.name)
def test_no_english_has_two_entries(folder: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.po"))]
    seen = [english for text in texts for english, _ in po.read(text)]

    assert len(seen) == len(set(seen)), sorted(one for one in seen if seen.count(one) > 1)


# `diag doctor --env` says the same of variables.
FOLDERS = {"explain": "doctor"}
# Catalogues that are looked up by the whole text.
WHOLE_TEXTS = ("help",)
# What each kind of place may hold.
VALUES = {
    "ranks": "ranks 0-1", "who": "rank 3", "victims": "rank 2", "culprits": "rank 1", "span": "1 min 3 s", "n": "7",
    "size": "2 GiB", "time": "10:00:00", "ratio": "5 %", "where": "f (a.py:3)", "at": "f (a.py:3)",
    "what": "thread up (tid 9)", "variable": "NCCL_NET=IB", "id": "hang", "clause": "nothing found", "wait": "wait",
    "have": "have", "doer": "process 9 (`sh up.sh`)", "parties": "pid 9 or 2 more", "exits": "exit code 1",
    "places": "rank 3 in f (a.py:3), rank 4 not known where", "callers": "rank 3 calls barrier", "fd": "7",
    "calls": "rank 3 calls barrier", "incalls": "rank 3 in barrier 7 of tp_0", "call": "barrier 7 of tp_0",
    "exchange": "rank 3 waits to send to rank 4", "command": "x1", "above": " (above)", "waited": "call",
}  # fmt: skip


@pytest.mark.parametrize("path", CATALOGUES, ids=NAMES)
def test_sentence_of_each_entry_is_found(path: Path) -> None:
    hidden, of = [], "" if path.parent == FOLDER else path.parent.name
    for english, _ in po.read(path.read_text(encoding="utf-8")):
        if of in WHOLE_TEXTS:
            continue
        plain = re.sub(r"\[([^|\[\]]*)\|([^|\[\]]*)\]", r"\2", english)
        told = re.sub(r"\{([A-Za-z_]\w*)\}", lambda place: VALUES.get(stem(place[1]), "x1"), plain)
        if whole(told, of) is None:
            hidden.append(told)

    assert hidden == []


def test_words_behind_a_sentence_are_in_no_value() -> None:
    behind = re.compile(r"\(\d+ of \d+ ranks seen\)|while the (?:model|data) was|after (?:iteration|step) \d")
    told = {shown for _, english, shown in set(texts()) if shown != english and whole(english)}

    assert {shown for shown in told if behind.search(re.sub('".*"', "", shown))} == set()


def test_line_that_is_none_of_a_catalogue_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2"):
        list(po.read('msgid "a"\nmsgfoo "b"\n'))


# --- a sentence and its template


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("rank 1 (pid 77) ended with exit code 1", "rank 1 (pid 77) 以退出码 1 结束"),
        ("Ranks 0-1 wait (2 of 2 ranks seen).", "rank 0-1 在等（看到 2/2 个 rank）。"),
        ("The job is hung; 1 critical.", "任务已卡住；1 个严重。"),
        (
            'rank 1 ended with exit code 1; it printed: "E: a; b. c ended with exit code 2"',
            'rank 1 以退出码 1 结束；它打印了："E: a; b. c ended with exit code 2"',
        ),
    ],
)
def test_sentence_gets_its_chinese(english: str, chinese: str) -> None:
    assert whole(english) == chinese


@pytest.mark.parametrize(
    "text", ["", " ", ".", "rank 1 went to sea", "rank one ended with exit code 1", "{clause}", "见 rank 1"]
)
def test_text_that_no_template_has_stays_as_it_is(text: str) -> None:
    assert in_chinese(text) == text and whole(text) is None


def test_advice_is_shown_in_chinese_as_far_as_there_is_any() -> None:
    mixed = "See rank-died above. Then sail to rank 7."

    assert in_chinese(mixed) == "见上面的 rank-died。Then sail to rank 7."


def test_sentence_of_which_one_clause_has_no_chinese_stays_english_whole() -> None:
    text = "rank 1 ended with exit code 1; then it went to sea"

    assert in_chinese(text) == text


def test_template_that_would_lose_a_value_is_not_used() -> None:
    own = Catalogue()
    own.add("{ranks} sleeps for {span}", "{ranks} 睡了")  # lacks a place
    own.add("port 80 of {ranks} is shut", "{ranks} 的端口关了")  # lacks a number

    assert own.translate("rank 1 sleeps for 3 s") is None
    assert own.translate("port 80 of rank 1 is shut") is None


def test_sentences_of_an_entry_are_known_one_by_one() -> None:
    own = Catalogue()
    own.add("Look at {ranks}; see disk {n}. Go on.", "看 {ranks}；看磁盘 {n}。继续。")

    assert own.translate("See disk 3.") == "看磁盘 3。"
    assert own.translate("Go on.") == "继续。"


def test_value_that_looks_like_a_place_is_not_filled_in() -> None:
    own = Catalogue()
    own.add("{ranks} reads {line}", "{ranks} 读 {line}")

    assert own.translate("rank 1 reads {ranks}") == "rank 1 读 {ranks}"


def test_place_that_comes_twice_has_one_value() -> None:
    one = Template("{n} of {n}", "{n}")

    assert one.fill("3 of 3", str) == "3" and one.fill("3 of 4", str) is None


def hostile() -> list[str]:
    """Texts that templates nearly match, in many ways."""
    bits = [
        "rank 0: ",
        "rank 0 waits, ",
        "(a; b) ",
        "after iteration 1 ",
        '"',
        "`",
        "[is|are] ",
        "for 3 s ",
        "; ",
        ". ",
    ]
    repeated = [bit * 300 for bit in bits]
    return [*repeated, "".join(bits) * 30, "rank 0 waits" + " (rank 1 waits" * 200, "\x00\ud800" * 50]


@pytest.mark.parametrize("text", hostile(), ids=range(len(hostile())))
def test_hostile_text_is_shown_with_all_that_it_says(text: str) -> None:
    assert lost(text, in_chinese(text)) == []


@pytest.mark.parametrize("cut", [lambda text: text[: len(text) // 2], lambda text: text[::-1], str.upper])
def test_mangled_text_of_captures_loses_nothing(cut: Callable[[str], str]) -> None:
    for english in {english for _, english, _ in texts()[::7]}:
        assert lost(cut(english), in_chinese(cut(english))) == []


@pytest.mark.parametrize("rule", ["../../etc/passwd", "no-such-rule", "*", "a" * 5000])
def test_rule_of_a_strangers_report_is_only_a_name(rule: str) -> None:
    finding = {"id": "x", "cause": "y", "rule": rule, "summary": "went to sea", "advice": "row"}

    assert of_finding(finding, "summary") == "went to sea"


# --- what commands say beside findings


@pytest.mark.parametrize("of", ["doctor", "explain", "help", "errors", "estimate", "top"])
def test_all_that_a_command_says_has_chinese(of: str) -> None:
    assert without_chinese(of) == [], f"give these Chinese in diag/outputs/chinese/{FOLDERS.get(of, of)}/*.po"


def test_no_value_of_what_commands_say_is_lost() -> None:
    said = {**said_in("doctor"), **said_in("errors"), **said_in("explain")}

    assert {english: lost(english, shown) for english, shown in said.items() if lost(english, shown)} == {}


def test_part_of_a_manifest_stays_as_it_is_written() -> None:
    piece = "securityContext:\n  capabilities:\n    add: [IPC_LOCK]\nand in the pod's spec:"

    assert by_line(piece, "doctor").split("\n") == [*piece.split("\n")[:3], "并在 pod 的 spec 里："]


def test_doctor_help_and_errors_are_in_the_language_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text("a: [")
    monkeypatch.setenv("DIAG_LANG", "zh")

    assert main(["doctor", "--manifest", str(manifest)]) == 10
    shown = capsys.readouterr().out
    assert shown.startswith("问题") and "不是 YAML" in shown and shown.rstrip().endswith("1 个问题：job.yaml")
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    assert capsys.readouterr().out.startswith("用法：diag doctor")
    assert main(["dmup"]) == 2
    assert capsys.readouterr().err == "错误：没有 'dmup' 这个命令\n\n提示：是不是想写 `diag dump`？\n"
    assert main(["doctor", "--manifest", str(manifest), "--lang", "en"]) == 10
    assert capsys.readouterr().out.startswith("problem     job.yaml: line 1: not YAML")
    said = {lang: (main(["doctor", "--manifest", str(manifest), "--json", "--lang", lang]), capsys.readouterr().out)
            for lang in ("en", "zh")}  # fmt: skip
    texts = [re.sub(r'"(since|at)": [\d.]+', "", out) for _, out in said.values()]
    assert texts[0] == texts[1]


# --- commands


CAPTURE = str(CAPTURES / "h200-live/data-hang")


def replayed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["replay", CAPTURE, *words]) == 10
    return capsys.readouterr().out


def test_report_is_in_chinese_where_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIAG_LANG", "en")

    text = replayed(capsys, "--lang", "zh")

    assert text.startswith("任务于 ") and "处理：" in text and "置信度" in text
    assert "do: " not in text and "confidence" not in text
    assert text.rstrip().endswith("没有调用栈：被信号 9（SIGKILL）杀死")


def test_flag_goes_before_the_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIAG_LANG", "zh")

    assert replayed(capsys, "--lang", "en").startswith("The job failed ")


def test_json_and_changes_are_english_in_every_language(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in ("--json", "--changes"):
        assert replayed(capsys, form, "--lang", "zh") == replayed(capsys, form, "--lang", "en")


def test_english_report_loads_no_catalogue() -> None:
    script = (
        "import sys; from diag.cli.main import main; main(['replay', sys.argv[1], '--lang', 'en']);"
        "sys.exit('diag.outputs.chinese' in sys.modules)"
    )

    assert (
        subprocess.run([sys.executable, "-c", script, CAPTURE], capture_output=True, check=False).returncode
        == 0
    )


def test_dump_is_in_chinese_as_a_whole() -> None:
    report = {"job": {"state": "running"}, "findings": [], "not_checked": []}
    document = json.loads(
        json.dumps(
            {
                "report": report, "text": "", "missing": {"3": ["went to sea"]}, "ranks": [0, 1], "seconds": 2.0,
                "probes": [], "bundle": "/runs/a.tar.gz", "next_command": "diag explain hang",
                "next_reason": "what each class of hang means and what to do",
            }
        )
    )  # fmt: skip

    assert dump_text(document, colour=False, width=80, lang="zh").split("\n")[3:] == [
        "缺少：rank 3：went to sea",
        "2 个 rank，用时 2 秒，没有暂停任何进程",
        "证据包：/runs/a.tar.gz   （再看一次：diag replay /runs/a.tar.gz）",
        "内容：stacks.txt、dump.json、journal",
        "下一步：diag explain hang   （各类 hang 的含义和处理办法）",
    ]


def test_catalogue_that_cannot_be_read_leaves_english(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError(24, "Too many open files")

    catalogue.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refuse)
        shown = in_chinese("nothing found")
    catalogue.cache_clear()

    assert shown == "nothing found"
    assert in_chinese("nothing found") == "未发现问题"
