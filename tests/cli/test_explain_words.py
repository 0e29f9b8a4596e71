"""`diag explain` of what people have at hand: a variable, a code, a line that they paste."""

from __future__ import annotations

import json

import pytest

from diag.cli.main import main
from diag.knowledge import table
from diag.knowledge.env_lint import invented, nccl_variables, removed_from_nccl, torch_variables
from diag.knowledge.words import page_of

# The lines that are pasted most often -> the finding that has to answer. Forms of torch 2.13, NCCL 2.28, Linux 6.8, ms-swift 4.6.
PASTES = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "cuda-oom",
    "OSError: [Errno 28] No space left on device": "disk-full",
    "[Tue Nov 24 02:00:00 2026] NVRM: Xid (PCI:0000:1b:00): 79, pid=4242, name=python, GPU has fallen off the bus.": "gpu-fault",
    "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000": "duplicate-gpu",
    "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
    "code: -98, name: EADDRINUSE, message: address already in use": "port-in-use",
    "Out of memory: Killed process 4242 (python) total-vm:123456kB, anon-rss:65432kB, file-rss:0kB, "
    "shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0": "host-oom",
    "ModuleNotFoundError: No module named 'flash_attn'": "missing-module",
}


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words, "--lang", "en"]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("line", PASTES)
def test_pasted_line_is_answered_with_its_finding(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, line)

    assert PASTES[line] in text and "do: " in text
    assert f"the whole page: diag explain {PASTES[line]}" in text


def test_pasted_line_is_in_json_with_its_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--json", *next(iter(PASTES)).split()]) == 0  # words without quotes
    document = json.loads(capsys.readouterr().out)

    assert [one["id"] for one in document["findings"]] == ["cuda-oom"] and document["pages"] == []


def test_piece_of_a_message_names_the_rules_whose_lines_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = explained(capsys, "Watchdog caught collective operation timeout")

    assert text.startswith("nccl-watchdog-timeout: collective-timeout (watchdog)")
    assert "NCCL's watchdog ended a collective" in text


@pytest.mark.parametrize(
    "line", ["hello world how are you", "step 10/100 loss: 2.31", "INFO all is well here"]
)
def test_line_that_shows_nothing_is_an_error(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", line]) == 2
    assert "diag does not recognise it" in capsys.readouterr().err


@pytest.mark.parametrize("asked", ["Xid 79", "xid: 79", "XID79"])
def test_xid_is_explained_with_its_number(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "fallen off the PCIe bus" in explained(capsys, asked)


@pytest.mark.parametrize("asked", ["ENOSPC", "enospc", "[Errno 28]", "errno 28"])
def test_errno_is_its_text_and_the_finding_of_a_line_with_it(
    asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = explained(capsys, asked)

    assert "errno 28: No space left on device" in text and "disk-full" in text


@pytest.mark.parametrize("asked", ["ncclSystemError", "nccl error 2", "NCCL result: 2"])
def test_result_of_nccl(asked: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "NCCL's result 2" in explained(capsys, asked)


def test_variable_is_what_it_sets_since_when_and_what_a_wrong_value_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = explained(capsys, "NCCL_IB_GID_INDEX")

    assert "GID" in text and "Read by: NCCL 2.13 and newer" in text and "If it is wrong:" in text
    assert "read: nothing" not in text


def test_value_of_a_variable_is_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert "With 1: it makes NCCL send everything between nodes over TCP" in explained(
        capsys, "export NCCL_IB_DISABLE=1"
    )
    assert "With 0" not in explained(capsys, "NCCL_IB_DISABLE=0")


def test_variable_that_nothing_reads_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Read by: nothing:" in explained(capsys, "NCCL_TIMEOUT")


def test_misspelt_variable_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "NCCL_SOCKET_RETRY_CNTT"]) == 2
    assert "NCCL_SOCKET_RETRY_CNT" in capsys.readouterr().err


def test_every_known_variable_has_a_page_and_every_meaning_is_of_a_known_one() -> None:
    known = {*nccl_variables(), *removed_from_nccl(), *torch_variables(), *invented()}

    assert [name for name in known if not page_of(name)[1]] == []
    explained_here = {
        name for name in table("variables")["variables"] if name.startswith(("NCCL_", "TORCH_NCCL_"))
    }
    assert sorted(explained_here - known) == []
