"""What of a line is a slot, and what is its template."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diag.state.line_template import read


@pytest.mark.parametrize(
    ("text", "counts", "values"),
    [
        ("[rank0] iter 120 loss 0.53", [("iter", 120, 0)], [0.53]),
        ("step=120 | loss=0.5 | lr=1e-4", [("step", 120, 0)], [0.5, 1e-4]),
        ('{"step": 120, "loss": 0.53, "ts": 1763856998.12}', [("step", 120, 0)], [0.53]),
        ('{"level":"info","step":7,"msg":"ok"}', [("step", 7, 0)], []),
        ("{'loss': '4.36', 'iteration': '3/12'}", [("iteration", 3, 12)], [4.36]),
        ("step=3 loss=1.5e999", [("step", 3, 0)], [math.inf]),
        ("120/5000 ...", [("", 120, 5000)], []),
        ("Batch 40 of 400", [("Batch", 40, 400)], []),
        (" 37%|###7      | 370/1000 [00:35<01:00, 1.05it/s]", [("", 370, 1000)], []),
        # Lightning 2.5
        (
            "Epoch 0:  37%|###7 | 370/1000 [00:35<01:00, 1.05it/s, v_num=0, train_loss=0.53]",
            [("Epoch", 0, 0), ("", 370, 1000), ("v_num", 0, 0)],
            [0.53],
        ),
        # pytorch/examples, mnist and imagenet
        (
            "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.345",
            [("Epoch", 1, 0), ("", 640, 60000)],
            [2.345],
        ),
        (
            "Epoch: [0][  10/391]\tLoss 4.2e+00 (4.3e+00)",
            [("Epoch", 0, 0), ("", 10, 391)],
            [4.2, 4.3],
        ),
        # rich 13
        (
            "Epoch 1/3 ━━━━╸━━━━ 120/500 0:00:12 • 0:00:30 10.2it/s loss: 0.53",
            [("Epoch", 1, 3), ("", 120, 500)],
            [0.53],
        ),
        ("2026-11-23 10:00:00,123 - INFO - step 5 loss 2.1e-3 tokens/s 1234.5", [("step", 5, 0)], [2.1e-3]),
        ("step 5 (512.3 samples/s, 71.2 GiB)", [("step", 5, 0)], []),
    ],
)
def test_numbers_that_may_count_and_results_beside_them_are_slots(
    text: str, counts: list[tuple[str, int, int]], values: list[float]
) -> None:
    line = read(text)

    assert line is not None
    assert [(count.name, count.value, count.total) for count in line.counts] == counts
    assert [value.value for value in line.values] == values


@pytest.mark.parametrize(
    "text",
    [
        "still waiting (attempt 7/100)",
        "Retrying (Retry(total=4, connect=None, read=None))",
        "heartbeat 12",
        "elapsed 35",
        "waiting for the server, 12.5 s",
        "[2026-11-23 10:00:00] ready",
        "temperature 61 C, memory 1234 MiB, 97% busy, power 310 W",
        "Saved /out/checkpoint-500/model-00001-of-00004.safetensors",
        "listening on 10.0.0.5:29500",
        "torch 2.13.0",
    ],
)
def test_clocks_retries_sizes_and_names_are_no_slots(text: str) -> None:
    assert read(text) is None


def test_lines_of_one_form_have_one_template_and_their_rank_apart() -> None:
    first = read("2026-11-23 10:00:00 [rank0] iter 9 loss 0.5310 | 12.1 it/s")
    second = read("2026-11-23 10:00:09 [rank3] iter 1210 loss 3.1e-5 | 9 it/s")

    assert first is not None and second is not None
    assert (first.template, first.rank, second.rank) == (second.template, 0, 3)


def test_keys_of_json_name_the_slots_in_any_order() -> None:
    first, second = read('{"step": 1, "loss": 0.5}'), read('{"loss": 0.4, "step": 2}')

    assert first is not None and second is not None
    assert first.template == second.template
    assert first.counts[0].key == second.counts[0].key == ("step", 0)


@given(st.text(max_size=2000))
def test_any_text_is_read(text: str) -> None:
    line = read(text)

    assert line is None or all(count.value >= 0 for count in line.counts)
