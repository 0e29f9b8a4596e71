"""Datasets that a job cannot train on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from .act import kill_map_worker
from .assets import pairs, write_rows
from .case import Case, Version, megatron, megatron_environment, swift, swift_environment

__all__ = ["dataset_cases", "megatron_dataset_cases"]

_Prepare = Callable[[Path, Path], None]
_DATA = "{work}/data/train.jsonl"


def _rows(change: Callable[[int, dict[str, object]], dict[str, object]], count: int = 64) -> _Prepare:
    def prepare(work: Path, assets: Path) -> None:
        write_rows(work / "data" / "train.jsonl", [change(i, row) for i, row in enumerate(pairs(count))])

    return prepare


def _text(text: str) -> _Prepare:
    def prepare(work: Path, assets: Path) -> None:
        (work / "data" / "train.jsonl").write_text(text)

    return prepare


def _cut_line(work: Path, assets: Path) -> None:
    lines = [json.dumps(row) for row in pairs()]
    lines[40] = lines[40][:60]
    (work / "data" / "train.jsonl").write_text("\n".join(lines) + "\n")


def _other_type(i: int, row: dict[str, object]) -> dict[str, object]:
    return {**row, "messages": "Repeat exactly: the red river"} if i == 50 else row


def _renamed(i: int, row: dict[str, object]) -> dict[str, object]:
    return {"conversation_list": row["messages"], "bad_answer": row["rejected_response"]}


def _without_rejected(i: int, row: dict[str, object]) -> dict[str, object]:
    return {"messages": row["messages"]}


def _without_content(i: int, row: dict[str, object]) -> dict[str, object]:
    return {**row, "messages": [{"role": "user", "text": "hello"}, {"role": "assistant", "text": "hi"}]}


def _two_files(work: Path, assets: Path) -> None:
    write_rows(work / "data" / "a.jsonl", pairs(32))
    write_rows(
        work / "data" / "b.jsonl",
        [{"messages": {"user": "a", "assistant": "b"}, "rejected_response": 3} for _ in range(32)],
    )


_PLUGIN = """\
from swift.llm import DatasetMeta, ResponsePreprocessor, register_dataset


class Scored(ResponsePreprocessor):
    def preprocess(self, row):
        row['score'] = row['annotations']['quality']
        return super().preprocess(row)


register_dataset(DatasetMeta(dataset_path='{work}/data/train.jsonl', dataset_name='scored', preprocess_func=Scored()))
"""


def _plugin(module: str) -> _Prepare:
    def prepare(work: Path, assets: Path) -> None:
        write_rows(work / "data" / "train.jsonl", pairs())
        (work / "plugin.py").write_text(_PLUGIN.replace("{work}", str(work)).replace("swift.llm", module))

    return prepare


def dataset_cases(version: Version) -> list[Case]:
    """On the transformers path, for any version."""
    environment = swift_environment(1 if version.tuner == "train_type" else 2)

    def case(name: str, expect: str, why: str, prepare: _Prepare | None, **flags: str | None) -> Case:
        # Rank 0 reads first, the others wait: what cannot be read is its error alone.
        ranks = (0,) if name in ("cut-line", "not-json", "empty-file") else ()
        return Case(
            name,
            expect,
            why,
            swift(version, **{"dataset": _DATA, **flags}),
            environment,
            prepare,
            ranks=ranks,
        )

    plugin_flag = "external_plugins" if version.tuner == "tuner_type" else "custom_register_path"
    module = "swift.dataset" if version.tuner == "tuner_type" else "swift.llm"
    return [
        case(
            "no-rejected", "dataset-schema", "DPO on rows without rejected_response", _rows(_without_rejected)
        ),
        case(
            "renamed-columns",
            "dataset-schema",
            "all columns have names that ms-swift does not know",
            _rows(_renamed),
        ),
        case(
            "no-content",
            "dataset-schema",
            "messages have the key text in place of content",
            _rows(_without_content),
        ),
        case(
            "other-type",
            "none",
            "row 51 has a string for its messages: it is left out, with a traceback, and the job runs to its end",
            _rows(_other_type),
        ),
        case("cut-line", "dataset-format", "line 41 of the JSON lines is cut off in the middle", _cut_line),
        case(
            "not-json",
            "dataset-format",
            "the .jsonl file holds tab-separated text",
            _text("prompt\tanswer\nhello\thi\n" * 20),
        ),
        case("empty-file", "dataset-format", "the dataset file has no bytes", _text("")),
        case(
            "no-file",
            "dataset-format",
            "the dataset file does not exist",
            None,
            dataset="{work}/data/missing.jsonl",
        ),
        case(
            "all-too-long",
            "dataset-format",
            "max_length 8 is less than any row has: every row is dropped",
            _rows(lambda i, r: r),
            max_length="8",
        ),
        case(
            "two-schemas",
            "dataset-schema",
            "two files of different column types in one dataset folder",
            _two_files,
            dataset="{work}/data",
        ),
        Case(
            "map-worker-killed",
            "rank-died",
            "one of the processes that tokenise on rank 0 was killed with SIGKILL",
            swift(version, dataset=_DATA, dataset_num_proc="4"),
            environment,
            _rows(lambda i, r: r, 150_000),
            kill_map_worker(0, "Map (num_proc=4):"),
            ranks=(0,),
        ),
        Case(
            "map-key-error",
            "dataset-schema",
            "a preprocessor of the user's own reads a field that the rows lack, in a process of map",
            swift(version, "sft", **{"dataset": "scored", "strict": "true", plugin_flag: "{work}/plugin.py"}),
            environment,
            _plugin(module),
            ranks=(0,),
        ),
    ]


def megatron_dataset_cases(version: Version) -> list[Case]:
    """The same troubles through `megatron rlhf`."""
    environment = megatron_environment()

    def case(name: str, expect: str, why: str, prepare: _Prepare | None, **flags: str | None) -> Case:
        return Case(
            f"megatron-{name}", expect, why, megatron(**{"dataset": _DATA, **flags}), environment, prepare
        )

    return [
        case(
            "no-rejected", "dataset-schema", "DPO on rows without rejected_response", _rows(_without_rejected)
        ),
        case(
            "other-type",
            "none",
            "row 51 has a string for its messages: it is left out, with a traceback, and the job runs to its end",
            _rows(_other_type),
        ),
        case("cut-line", "dataset-format", "line 41 of the JSON lines is cut off in the middle", _cut_line),
        case(
            "all-too-long",
            "dataset-format",
            "max_length 8 is less than any row has",
            _rows(lambda i, r: r),
            max_length="8",
        ),
        case(
            "few-rows",
            "none",
            "6 rows for a global batch of 8: it goes on to the next epoch",
            _rows(lambda i, r: r, 6),
        ),
    ]
