"""`diag notify --test`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diag.cli.main import main
from tests.notify.services import Services


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIAG_NOTIFY", raising=False)
    monkeypatch.setenv("DIAG_LANG", "en")


def test_each_service_is_sent_a_message_and_its_answer_is_printed(
    standins: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("apprise")
    standins.answers["oapi.dingtalk.com"] = (200, {"errcode": 310000, "errmsg": "keywords not in content"})

    code = main(["notify", "--test", f"http://127.0.0.1:{standins.port}/mine", "dingtalk://abc123"])

    assert code == 1
    assert capsys.readouterr().out.splitlines() == [
        "webhook: accepted (HTTP 200)",
        "dingtalk: refused (HTTP 200): 310000 keywords not in content",
    ]
    titles = [
        str(request.json.get("title") or request.json["text"]["content"]) for request in standins.requests
    ]
    assert len(titles) == 2 and all(title.startswith("test message of diag - ") for title in titles)


def test_address_of_the_settings_is_the_default(
    standins: Services, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIAG_NOTIFY", f"http://127.0.0.1:{standins.port}/mine")

    assert main(["notify", "--test", "--json", "--lang", "zh"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "diag.notify/1"
    assert [answer["accepted"] for answer in document["answers"]] == [True]
    assert standins.requests[0].json["title"].startswith("diag 的测试消息 - ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["notify"], "nothing to do: --test is missing"),
        (["notify", "--test"], "no address is given"),
        (["notify", "--test", "hooks.example.com/secret-path"], "address 1 of `notify` is none"),
    ],
)
def test_what_cannot_be_sent_is_an_error(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2

    error = capsys.readouterr().err
    assert said in error and "secret-path" not in error


def test_missing_library_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("diag.outputs.notify.addresses.find_spec", lambda name: None)

    assert main(["notify", "--test", "slack://a/b/c"]) == 2

    assert "hint: pip install 'diag[notify]'" in capsys.readouterr().err
