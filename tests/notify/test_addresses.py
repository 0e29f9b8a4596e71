"""The settings of messages, and that no address is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from diag.launch.launchers.secrets import hidden_in_lines, redacted
from diag.outputs.notify import addresses as module
from diag.outputs.notify.addresses import Address, addresses
from diag.outputs.notify.output import problems
from diag.settings import load
from diag.text.errors import DiagError

SECRET = "TIiajkdnlazkcOXrIdevi7"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DIAG_NOTIFY", raising=False)
    return tmp_path


def no_apprise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)


def test_each_is_named_by_its_service_and_a_second_one_by_number() -> None:
    found = addresses(
        f"slack://a/b/{SECRET} https://hooks.slack.com/services/T/B/x https://example.com/x mailto://u:p@h slack://a/b/{SECRET}"
    )

    assert [one.name for one in found] == ["slack 1", "slack 2", "webhook", "e-mail"]
    assert [one.plain for one in found] == [False, False, True, False]
    assert SECRET not in repr(found)


def test_file_has_one_a_line(folder: Path) -> None:
    (folder / "urls").write_text("# of the team\nntfy://topic\n\n  tgram://1:a/2\n")

    assert [one.name for one in addresses("@urls")] == ["ntfy", "telegram"]


@pytest.mark.parametrize("setting", [f"slack://a/b/c {SECRET}", f"@/no/such/{'f' * 9}", f"://{SECRET}"])
def test_what_is_no_address_is_an_error_that_does_not_show_it(setting: str) -> None:
    with pytest.raises(DiagError) as error:
        addresses(setting)

    assert SECRET not in f"{error.value} {error.value.hint}" and error.value.exit_code == 2


def test_table_of_the_file_variable_and_flag_come_in_this_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "diag.toml").write_text(
        'port = 1\n[notify]\nurls = ["ntfy://a", "ntfy://b"]\non_finding = "page me"\nper_hour = 3\n'
    )
    (folder / "diag.toml").chmod(0o600)

    settings = load()

    assert (settings.notify, settings.on_finding, settings.notify_per_hour, settings.port) == (
        "ntfy://a ntfy://b",
        "page me",
        3,
        1,
    )
    monkeypatch.setenv("DIAG_NOTIFY", "ntfy://c")
    assert load().notify == "ntfy://c"
    assert load(notify="ntfy://d").notify == "ntfy://d"
    assert "ntfy" not in repr(load())


@pytest.mark.parametrize(("text", "said"), [
    ('[notify]\nurl = "ntfy://a"\n', "notify.url: unknown setting"),
    ("[notify]\nper_hour = 0\n", "notify_per_hour: Input should be greater than or equal to 1"),
])  # fmt: skip
def test_mistake_in_the_table_is_named(text: str, said: str, folder: Path) -> None:
    (folder / "diag.toml").write_text(text)
    (folder / "diag.toml").chmod(0o600)

    with pytest.raises(DiagError, match=said):
        load()


def test_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    no_apprise(monkeypatch)

    (line,) = problems(load(notify=f"slack://a/b/{SECRET} https://example.com/x ntfy://a"))

    assert (
        line
        == "no message can go to slack, ntfy: the package apprise is not installed; pip install 'diag[notify]'"
    )


def test_own_webhook_needs_no_library_and_no_setting_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    no_apprise(monkeypatch)

    assert problems(load(notify="https://example.com/x", on_finding="cat")) == []
    assert problems(load()) == []


def test_command_that_cannot_run_is_told() -> None:
    assert problems(load(on_finding="/no/such/pager now")) == [
        "the command of --on-finding will not run: /no/such/pager: not found, or not executable"
    ]


@pytest.mark.parametrize("url", [
    f"slack://T1/B1/{SECRET}", f"tgram://123:{SECRET}/1", f"dingtalk://{SECRET}@abcd", f"feishu://{SECRET}", f"wecombot://{SECRET}",
    f"discord://417/{SECRET}", f"ntfys://{SECRET}", f"mailtos://me:{SECRET}@example.com", f"lark://{SECRET}",
])  # fmt: skip
def test_address_in_a_command_line_or_a_log_is_masked(url: str) -> None:
    assert SECRET not in str(redacted(["train.py", "--alert", url])) + hidden_in_lines(
        f"sending to {url} now"
    )
    assert hidden_in_lines(f"sending to {url} now").endswith(" now")


def test_every_part_of_an_address_is_hidden_in_an_answer() -> None:
    address = Address(f"https://me:pass-word@example.com/{SECRET}/send?key=abcd%2Fefgh", "webhook")

    said: Any = address.hidden(f"no such hook {SECRET} for abcd/efgh at example.com, pass-word")

    assert said == "no such hook *** for *** at example.com, ***"
