"""Tables of the field: variables of NCCL, Xids, layouts of ranks, forms of log prefixes. Knows no job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diag.text.tables import load_table


def table(name: str) -> Any:
    """A table of this folder, NAME.yaml, as it is there."""
    return load_table(Path(__file__).parent / f"{name}.yaml")


def peak_of(name: str) -> float | None:
    """TFLOP/s of dense bf16 of a GPU by its name; None for one that is not known.

    >>> peak_of("NVIDIA H100 80GB HBM3"), peak_of("NVIDIA H20"), peak_of("Tesla T4")
    (989, 148, None)
    """
    padded = f" {name.replace('-', ' ')} "
    found = next((row for row in table("gpu_peaks") if f" {row['name']} " in padded), None)
    return None if found is None else found["tflops"]
