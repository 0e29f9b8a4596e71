"""`diag explain` in both languages, and the Chinese lines below findings in the terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from diag.cli.main import main
from diag.model import JOB, Change, ChangeKind, Confidence, Finding, Severity
from diag.outputs import manual
from diag.outputs.terminal.text import panel, report_text
from diag.text.columns import columns, wrap_wide
from diag.text.language import language_of

_LOCALE = ("LC_", "LANG", "DIAG_", "PYTHONIOENCODING", "PYTHONUTF8")
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(_LOCALE)}
DIED = Finding(
    id="rank-died", subject="rank 1", severity=Severity.CRITICAL, confidence=Confidence.HIGH, cause="exit_1", ranks=(1,),
    summary="rank 1 (pid 77) ended with exit code 1", advice="Read its last lines.", since=10.0,
)  # fmt: skip


def run(*words: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    line = [sys.executable, "-m", "diag", *words]
    return subprocess.run(line, capture_output=True, timeout=120, check=False, env={**PLAIN, **env})


def opened(finding: Finding) -> Change:
    return Change(kind=ChangeKind.OPENED, finding=finding, at=10.0, opened_at=10.0)


@pytest.mark.parametrize(
    ("environment", "lang"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LC_MESSAGES": "zh_TW", "LANG": "en_US.UTF-8"}, "zh"),
        ({"LC_ALL": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "en"),
        ({"LC_ALL": "", "LANG": "zh_CN"}, "zh"),
        ({"LC_ALL": "C.UTF-8", "LANGUAGE": "zh"}, "en"),
        ({"LANG": "de_DE.UTF-8", "LANGUAGE": "de:zh_CN"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "en"}, "en"),
    ],
)
def test_language_is_the_locales_as_gettext_looks_it_up(environment: dict[str, str], lang: str) -> None:
    assert language_of("", environment) == lang


def test_page_is_chinese_by_locale_by_setting_and_by_flag_and_the_flag_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def heading(*words: str) -> str:
        assert main(["explain", "shm-too-small", *words]) == 0
        return capsys.readouterr().out.splitlines()[3]

    monkeypatch.chdir(tmp_path)
    for name in ("LC_ALL", "LC_MESSAGES", "LANGUAGE", "DIAG_LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert heading() == "含义："
    assert heading("--lang", "en") == "Meaning:"
    monkeypatch.setenv("DIAG_LANG", "en")
    assert heading() == "Meaning:"
    monkeypatch.delenv("DIAG_LANG")
    Path("diag.toml").write_text('lang = "en"\n')
    assert heading() == "Meaning:"
    assert heading("--lang", "zh") == "含义："


def test_language_that_there_is_not_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIAG_LANG", "fr")

    assert main(["explain", "hang"]) == 2
    assert "lang: Input should be" in capsys.readouterr().err


def test_list_in_chinese_has_every_finding_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--lang", "zh"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == manual.ids()
    assert all(line.endswith("。") for line in lines)


def test_name_of_a_cause_leads_to_its_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "fragmentation", "--lang", "en"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("cuda-oom (fragmentation)\n") and said.endswith(
        "the whole page: diag explain cuda-oom\n"
    )


@pytest.mark.parametrize("wrong", ["../en/hang", "hang.md", "", "en/hang"])
def test_only_ids_are_looked_up_not_paths(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", wrong]) == 2

    assert capsys.readouterr().out == ""


def test_id_of_a_rule_falls_through_to_the_rules_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "nccl-system-error", "--lang", "zh"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("nccl-system-error\n") and "怎么办" in said and "NCCL_DEBUG=WARN" in said


def test_terminal_without_chinese_characters_gets_question_marks_and_is_told_why() -> None:
    done = run("explain", "fd-limit", "--lang", "zh", LC_ALL="C", PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert b"???" in done.stdout and b"`ulimit -n 65536`" in done.stdout
    assert b"set PYTHONUTF8=1" in done.stderr


def test_terminal_without_chinese_characters_gets_the_english_page_where_nobody_asked_for_chinese() -> None:
    done = run("explain", "fd-limit", LANG="zh_CN.UTF-8", PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert b"What to do:" in done.stdout
    assert b"set PYTHONUTF8=1" in done.stderr


def test_terminal_in_gbk_gets_the_page_in_gbk() -> None:
    done = run("explain", "fd-limit", LANG="zh_CN.GBK", PYTHONIOENCODING="gbk")

    assert (done.returncode, done.stderr) == (0, b"")
    assert "怎么办：" in done.stdout.decode("gbk")


@pytest.mark.parametrize("lang", manual.LANGUAGES)
@pytest.mark.parametrize("width", [40, 80])
def test_lines_of_a_page_keep_the_width_but_for_commands_and_names(
    lang: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))

    for finding in ("hang", "ib-fallback", "version-mismatch"):
        assert main(["explain", finding, "--lang", lang]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(columns, lines)) <= width
        assert (
            width < 80
            or [line for line in lines if line.strip()[:1] in ("，", "。", "：", "；", "、", "）")] == []
        )


def test_command_in_backticks_is_not_broken_where_it_fits_into_a_line() -> None:
    assert wrap_wide("先看 `ls -l /proc/PID/fd`，再看 `df`。", 23) == [
        "先看",
        "`ls -l /proc/PID/fd`，",
        "再看 `df`。",
    ]


# --- below findings
# ----------------------------------------------------------------------------------------------


def test_finding_that_opens_is_told_in_chinese() -> None:
    text = panel(opened(DIED), lang="zh")

    assert text.splitlines()[1] == "diag|   rank 1 (pid 77) 以退出码 1 结束"


def test_finding_whose_sentence_has_no_chinese_says_what_such_a_finding_means() -> None:
    text = panel(opened(replace(DIED, summary="rank 1 went to sea")), lang="zh")

    assert text.splitlines()[1:4] == [
        "diag|   rank 1 went to sea",
        "diag|   某个 rank 的进程以非 0 退出码结束，或者被信号杀死。",
        "diag|   说明：diag explain rank-died --lang zh",
    ]


def test_finding_in_english_is_as_it_was() -> None:
    assert panel(opened(DIED)).isascii()


def test_finding_that_has_no_page_is_said_without_one() -> None:
    other = replace(DIED, id="a-rule", subject=JOB, summary="rank 1 went to sea")

    assert "说明" not in panel(opened(other), lang="zh")


def test_report_is_in_chinese_and_its_json_has_none() -> None:
    document = {"job": {"state": "failed"}, "findings": [DIED.to_json()], "not_checked": []}

    assert "rank-died：rank 1；置信度高" in report_text(document, lang="zh")
    assert report_text(document).isascii()
    assert json.dumps(document, ensure_ascii=False).isascii()


def test_replay_speaks_chinese_by_locale_and_its_json_does_not(tmp_path: Path) -> None:
    log = tmp_path / "job.log"  # of CPython 3.11
    error = "OSError: [Errno 28] No space left on device: '/out/checkpoint-4/optimizer.pt'"
    log.write_text(
        f'Traceback (most recent call last):\n  File "/job/train.py", line 7, in <module>\n{error}\n'
    )
    words = ("replay", str(log))

    shown, data = run(*words, LANG="zh_CN.UTF-8"), run(*words, "--json", LANG="zh_CN.UTF-8")
    plain = run(*words, LANG="zh_CN.UTF-8", PYTHONIOENCODING="ascii")

    assert "处理：" in shown.stdout.decode()
    assert data.stdout.isascii() and json.loads(data.stdout)["findings"]
    assert plain.stdout.isascii() and b"do: " in plain.stdout
