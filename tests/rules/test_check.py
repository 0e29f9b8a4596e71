"""`diag rules test` refuses what is ambiguous, slow or untested, and says where."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from diag.cli.main import main
from diag.detectors.rules import load as loading
from diag.detectors.rules.load import for_a_run, load, packaged, packaged_folder
from diag.detectors.rules.page import page
from diag.detectors.rules.schema import Rule

GOOD = (packaged_folder() / "python" / "missing-module.yaml").read_text()
TRACED = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nOSError: shard is gone from disk'


def write(folder: Path, name: str = "shard-missing", **changes: Any) -> Path:
    data = yaml.safe_load(GOOD)
    data |= {
        "id": name, "match": [{"literal": "shard is gone", "regex": "shard is gone from (?P<module>\\w+)"}],
        "examples": [{"origin": "our reader 2.1, a run", "text": TRACED}],
        "silent": [{"why": "a warning of the same", "text": "WARNING shard is gone from disk, again"}],
        **changes,
    }  # fmt: skip
    path = folder / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in data.items() if value is not None}, sort_keys=False)
    )
    return path


def problems(capsys: pytest.CaptureFixture[str], *paths: Path) -> str:
    capsys.readouterr()
    code = main(["rules", "test", *map(str, paths)])
    said = capsys.readouterr()
    assert (code == 10) == bool(said.out), said
    return said.out


def line_with(path: Path, text: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line)


def test_rules_that_come_with_diag_have_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(capsys) == ""


def test_good_rule_has_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(capsys, write(tmp_path)) == ""


@pytest.mark.parametrize(
    ("changes", "at", "words"),
    [
        ({"examples": []}, "examples:", "examples: List should have at least 1 item"),
        ({"silent": None}, "apiVersion", "silent: Field required"),
        ({"match": [{"regex": "shard"}]}, "regex: shard", "match.0.literal: Field required"),
        ({"match": [{"literal": "shard is gone", "regex": "(a+)+\\1$"}]}, "regex:", "match[0].regex: is not RE2"),
        ({"match": [{"literal": "shard is gone", "regex": "(?P<module>is).{1,1000}\\w{1,1000}x"}]}, "regex:", "slow"),
        ({"match": [{"literal": "RuntimeError: "}]}, "literal:", "slow: 'RuntimeError: ' occurs in ordinary lines"),
        ({"match": [{"literal": "shard is gone"}, {"literal": "shard is lost"}]}, "shard is lost", "match[1]: untested"),
        ({"examples": [{"origin": "our reader 2.1", "text": "OSError: shard is gone from disk"}]}, "origin:",
         "ends no traceback"),
        ({"silent": [{"why": "a near line", "text": "[rank0]: OSError: shard is gone from disk"}]}, "why:",
         "silent[0]: the rule names it"),
        ({"summary": "{who} lost {shard} today"}, "summary:", "{shard} is a group of no regex"),
        ({"kind": "lines"}, "kind:", "kind: Input should be"),
        ({"applies": {"torch": "2.4 and newer"}}, "applies:", "not a version range"),
        ({"over": ["no-such-rule"]}, "no-such-rule", "over[0]: there is no rule no-such-rule"),
        ({"finding": None}, "apiVersion", "needs a finding"),
        ({"also": [{"literal": "of the weekly job"}]}, "origin:", "what also: wants is missing"),
        ({"surprise": 1}, "surprise", "Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_bad_rule_is_refused_with_its_line(
    changes: dict[str, Any], at: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, **changes)

    said = problems(capsys, path)

    assert words in said
    assert f"{path}:{line_with(path, at)}: " in said


def test_packaged_rule_with_a_bad_regex_is_refused_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, match=[{"literal": "shard is gone", "regex": "(a+)+\\1$"}])
    packaged = next(item for item in loading.read_rules([path]) if isinstance(item, loading.Loaded))
    monkeypatch.setattr(loading, "packaged", lambda: SimpleNamespace(rules=(packaged.rule,)))

    said = problems(capsys, path)

    assert f"{path}:{line_with(path, 'regex:')}: match[0].regex: is not RE2" in said


def test_two_rules_for_one_line_are_refused_until_one_is_over_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    write(tmp_path, "shard-missing-too", cause="other")

    assert "ambiguous: shard-missing matches the same line" in problems(capsys, tmp_path)

    write(tmp_path, "shard-missing-too", cause="other", over=["shard-missing"])
    assert "ambiguous" not in problems(capsys, tmp_path)


def test_file_that_is_no_rule_is_said_and_others_are_tested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path)
    (tmp_path / "torn.yaml").write_text("apiVersion: diag/v1\nid: [torn\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))

    said = problems(capsys, tmp_path)

    assert "torn.yaml:3: not valid YAML" in said
    assert "list.yaml:1: not a rule" in said
    assert "binary.yaml:1: " in said
    assert "shard-missing" not in said


def test_yaml_cannot_run_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "evil.yaml").write_text(f"!!python/object/apply:os.system ['touch {tmp_path}/owned']\n")

    assert "not valid YAML" in problems(capsys, tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id: 2026-13-45\n", "month must be in"), ("count: " + "9" * 5000, "Exceeds the limit"),
        ("a: " + "[" * 500, "levels deep"), ("# " + "x" * (1 << 20), "larger than"),
        ("a: " + "[" * 200_000, "not valid YAML"),  # libyaml of PyYAML 6.0.4 says so itself, before we count
    ],
    ids=["no day", "no number", "too deep", "too large", "far too deep"],
)  # fmt: skip
def test_file_that_would_stop_the_reader_is_a_problem_of_that_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (tmp_path / "odd.yaml").write_text(text)

    assert words in problems(capsys, tmp_path)
    assert for_a_run(tmp_path, lambda line: None) is packaged()


def test_folder_of_a_config_map_holds_each_rule_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hidden = tmp_path / "..2026_11_21_10_00_00.1"
    hidden.mkdir()
    write(hidden)
    (tmp_path / "..data").symlink_to(hidden.name)
    (tmp_path / "shard-missing.yaml").symlink_to("..data/shard-missing.yaml")

    assert problems(capsys, tmp_path) == ""


def test_folder_of_rules_adds_and_replaces(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, "missing-module", title="Ours, with our own advice")

    rules = load([tmp_path])

    assert "shard-missing" in rules.by_id and len(rules.rules) == len(packaged().rules) + 1
    assert rules.by_id["missing-module"].title == "Ours, with our own advice"


def test_schema_is_that_of_the_rules(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "schema"]) == 0

    schema = json.loads(capsys.readouterr().out)
    assert {"match", "examples", "silent", "zh"} <= set(schema["required"])


def test_page_of_a_rule_has_all_sections_in_both_languages() -> None:
    rule = Rule.model_validate(yaml.safe_load(GOOD))

    assert all(
        head in page(rule)
        for head in ("Meaning: ", "Evidence: ", "What to do: ", "False alarms: ", "References: ")
    )
    assert all(head in page(rule, "zh") for head in ("含义", "怎么办", "误报")) and "PYTHONPATH" in page(
        rule, "zh"
    )
