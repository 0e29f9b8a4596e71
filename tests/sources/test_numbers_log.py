"""Lines in which programs say that their numbers went wrong."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diag.model.observations import LogLine, LossScaleReduced, NonFiniteReported, Observation
from diag.sources.logs.line_facts import read_text
from diag.sources.logs.printed import numbers_of


def facts(text: str) -> list[Observation]:
    return [fact for fact in read_text(text, "stderr", None) if not isinstance(fact, LogLine)]


@pytest.mark.parametrize(
    ("text", "reduced"),
    [
        ("[2023-08-02 00:41:17,526] [INFO] [loss_scaler.py:183:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
         "Attempted loss scale: 4294967296, reducing to 2147483648", 2147483648.0),
        ("  0%|          | 0/500 [00:00<?, ?it/s][2022-07-26 19:15:51,159] [INFO] [stage3.py:1834:_overflow_clean_up] "
         "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 65536", 65536.0),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Reducing loss scale to 32768.0", 32768.0),
        ("[2024-09-15 00:13:28,261] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. "
         "Attempted loss scale: 4294967296, but hysteresis is 2. Reducing hysteresis to 1", None),
        ("[deepspeed] OVERFLOW! Rank 0 Skipping step.", None),
    ],
)  # fmt: skip
def test_overflow_of_deepspeed_tells_the_scale_that_it_goes_to(text: str, reduced: float | None) -> None:
    (fact,) = [fact for fact in facts(text) if isinstance(fact, LossScaleReduced)]

    assert (fact.reduced, fact.at_minimum) == (reduced, False)


def test_scale_that_can_fall_no_further_is_told_with_the_rank_that_torch_names() -> None:
    (fact,) = facts(
        "[rank2]: Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
    )

    assert isinstance(fact, LossScaleReduced) and fact.at_minimum and fact.rank == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[rank3]: RuntimeError: Rank 3, node gpu-17, device 3, iteration 412: Unexpected result nan (message='found NaN in "
         "local grad norm for bucket #0 in backward pass before data-parallel communication collective')",
         (3, "grad", "bucket #0")),
        ("Unexpected result nan on rank 5 at iteration #412 invocation #7 (message='found NaN in local forward loss "
         "calculation')",
         (5, "loss", "")),
        ("AssertionError: Rank 13: found NaN in local grad norm in backward pass before data-parallel communication collective. "
         "Device: 5, node: node-15-11", (13, "grad", "")),
        ("[rank1]: RuntimeError: Function 'ScaledDotProductEfficientAttentionBackward0' returned nan values in its 0th output.",
         (1, "grad", "ScaledDotProductEfficientAttentionBackward0, output 0")),
    ],
)  # fmt: skip
def test_check_that_met_nan_tells_rank_and_place(text: str, expected: tuple[int, str, str]) -> None:
    (fact,) = [fact for fact in facts(text) if isinstance(fact, NonFiniteReported)]

    assert (fact.rank, fact.what, fact.where) == expected


@pytest.mark.parametrize(
    "text",
    [
        "OVERFLOW! of the disk",
        "files found in local cache",
        "the function returned nan values",
        "loss scale is at minimum",
    ],
)
def test_line_that_only_looks_like_it_says_nothing(text: str) -> None:
    assert facts(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{'loss': tensor(nan, device='cuda:0'), 'lr': 1e-05}", {"loss": "nan", "lr": "1e-05"}),
        (
            "{'loss': '4.36', 'grad_norm': 'inf', 'epoch': '0.04'}",
            {"loss": "4.36", "grad_norm": "inf", "epoch": "0.04"},
        ),
        ("{'loss': -inf, 'x': None, 'y': [1, 2], 'z': '3/12'}", {"loss": "-inf"}),
        ("", {}),
        ("[1, 2]", {}),
    ],
)
def test_numbers_of_printed_dicts(text: str, expected: dict[str, str]) -> None:
    assert {name: str(value) for name, value in numbers_of(text)} == expected


_NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.floats(-1e6, 1e6).map("{:.4f}".format),
    st.sampled_from(["1.", "007", "00.5", "1e400", "-0.0", "'4.3'", "True", "nan", "1E5", "tensor(2.)"]),
)
_NAMES = st.sampled_from(["loss", "a, b", "x}", "lr: 3", "é", "eval_loss"])


@settings(deadline=None)
@given(st.lists(st.tuples(_NAMES, _NUMBERS), min_size=1, max_size=6))
def test_dict_of_plain_numbers_is_read_as_pythons_own_parser_reads_it(pairs: list[tuple[str, str]]) -> None:
    plain = "{" + ", ".join(f"'{name}': {number}" for name, number in pairs) + "}"
    spaced = plain.replace("{", "{ ", 1)  # not so plain: read by ast.literal_eval

    assert repr(numbers_of(plain)) == repr(numbers_of(spaced))
