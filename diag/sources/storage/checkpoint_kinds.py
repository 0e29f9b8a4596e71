"""What makes a checkpoint of each kind whole, from the names, sizes and heads of its files. Pure.

Where the facts come from (read in the sources, none of it is documented as a format): torch_dist:
megatron/core/dist_checkpointing/serialization.py (0.16.1): common.pt first, then __R_I.distcp of each writer,
then `.metadata` by the coordinator, then metadata.json; torch/distributed/checkpoint/filesystem.py (torch
2.13): `.metadata` last. ms-swift 4.6.0, megatron_lm_utils.py: with --no_save_optim and safetensors there is
common.pt alone, and that is all. safetensors: huggingface_hub and transformers write the shards first and
model.safetensors.index.json last. DeepSpeed, runtime/engine.py: mp_rank_XX_model_states.pt,
[bf16_]zero_pp_rank_D_mp_rank_XX_optim_states.pt, then `latest`. Megatron legacy ("torch"):
mp_rank_TT[_PPP[_EEE]]/model_optim_rng.pt. transformers 4.57, trainer.py: trainer_state.json is the last file
of a checkpoint-N, after optimizer.pt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from diag.knowledge.checkpoint_args import iteration_of
from diag.model.observations import CheckpointFolder
from diag.sources.payload import mapping, texts, wholes, word

_MOST_NAMED = 8  # of a thousand missing files; the rest is counted
_SHARD = re.compile(r"(.{0,200})-(\d{5})-of-(\d{5})\.(safetensors|bin)\Z", re.ASCII)
_MP_RANK = re.compile(r"mp_rank_\d{2,3}(?:_\d{3}){0,2}\Z", re.ASCII)
_DEEPSPEED_STATES = re.compile(
    r"(?:mp_rank_\d\d|(?:bf16_)?zero_pp_rank_\d{1,6}_mp_rank_\d\d)_(?:model|optim)_states\.pt\Z", re.ASCII
)
_ZERO_RANK = re.compile(r"((?:bf16_)?zero_pp_rank_)(\d{1,6})(_mp_rank_\d\d_\w{1,20}\.pt)\Z", re.ASCII)
_MOST = 1 << 63  # no file system counts further


def read_folder(root: str, entry: Any) -> CheckpointFolder | None:
    """None where the payload does not describe a folder."""
    numbers = wholes(entry, "count", "bytes", "empty")
    changed = mapping(entry).get("changed")
    if numbers is None or not isinstance(changed, (int, float)) or not -_MOST < changed < _MOST:
        return None
    name = str(entry.get("name") or "")
    path = f"{root.rstrip('/')}/{name}" if name else root
    files = _sizes(entry.get("files"))
    heads = mapping(entry.get("heads"))
    kind, missing, damaged = "unknown", [], []
    if files is not None:
        kind, missing, damaged = _kind(files), _missing(files, heads), _damaged(files, heads)
    count, size, empty = numbers
    return CheckpointFolder(
        path,
        kind,
        iteration_of(path),
        count,
        size,
        float(changed),
        _few(missing),
        empty,
        _few(damaged),
        listed=files is not None,
    )


def _sizes(files: Any) -> dict[str, int] | None:
    if not isinstance(files, list):
        return None
    return {
        pair[0]: pair[1]
        for pair in files
        if isinstance(pair, (list, tuple))
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], int)
    }


def _kind(files: Mapping[str, int]) -> str:
    bases = {name.rpartition("/")[2] for name in files}
    if any(base.endswith(".distcp") for base in bases) or ".metadata" in bases:
        return "torch_dist" if bases & {"common.pt", "metadata.json"} else "torch_dcp"
    if any(_DEEPSPEED_STATES.match(base) for base in bases):
        return "deepspeed"
    if any(_MP_RANK.match(part) for name in files for part in name.split("/")[:-1]):
        return "megatron_legacy"
    if any(base.endswith(".safetensors") for base in bases):
        return "safetensors"
    if bases & {"pytorch_model.bin", "adapter_model.bin", "trainer_state.json"}:
        return "hf"
    return "unknown"


def _missing(files: Mapping[str, int], heads: Mapping[str, Any]) -> list[str]:
    parts: dict[str, set[str]] = {}
    for name in files:
        folder, _, base = name.rpartition("/")
        parts.setdefault(folder, set()).add(base)
    missing: list[str] = []
    for folder, bases in sorted(parts.items()):
        prefix = f"{folder}/" if folder else ""
        missing += [prefix + base for base in _missing_dcp(bases, _names(heads, prefix + ".metadata"))]
        missing += [prefix + base for base in _missing_shards(bases, heads, prefix)]
        missing += [prefix + base for base in _missing_zero(bases)]
        last = folder.rpartition("/")[2]
        if (
            _MP_RANK.match(last)
            and "model_optim_rng.pt" not in bases
            and not any(_DEEPSPEED_STATES.match(b) for b in bases)
        ):
            missing.append(prefix + "model_optim_rng.pt")
    top = parts.get("", set())
    if top & {"optimizer.pt", "scheduler.pt"} and "trainer_state.json" not in top:
        missing.append("trainer_state.json")
    return missing + _missing_by_tracker(files, heads)


def _missing_dcp(bases: set[str], named: list[str] | None) -> list[str]:
    written = any(base.endswith(".distcp") for base in bases)
    if ".metadata" not in bases:
        return [".metadata"] if written else []
    missing = [name for name in named or () if name not in bases]
    # A plain torch_dcp has neither; Megatron's own begins with one and ends with the other.
    if "common.pt" in bases and "metadata.json" not in bases:
        missing.append("metadata.json")
    if "metadata.json" in bases and "common.pt" not in bases:
        missing.append("common.pt")
    return missing


def _missing_shards(bases: set[str], heads: Mapping[str, Any], prefix: str) -> list[str]:
    indexes = sorted(base for base in bases if base.endswith((".safetensors.index.json", ".bin.index.json")))
    if indexes:  # a model in two formats, of which one was fetched, is whole by that one
        named = [_names(heads, prefix + base) or () for base in indexes]
        return min(
            ([name for name in names if name not in bases and "/" not in name] for names in named), key=len
        )
    missing: list[str] = []
    wanted: dict[tuple[str, str, str], int] = {}
    for base in bases:
        if match := _SHARD.match(base):
            wanted[(match[1], match[3], match[4])] = int(match[3])
    for (stem, total, ending), count in sorted(wanted.items()):
        shards = (f"{stem}-{number:05d}-of-{total}.{ending}" for number in range(1, min(count, 9999) + 1))
        missing += [name for name in shards if name not in bases]
        if stem in ("model", "pytorch_model"):
            missing.append(f"{stem}.{ending}.index.json")
    return missing


def _missing_zero(bases: set[str]) -> list[str]:
    """Holes in the ranks: those behind the last one are not known, as the world's size is not written down."""
    seen: dict[tuple[str, str], set[int]] = {}
    for base in bases:
        if match := _ZERO_RANK.match(base):
            seen.setdefault((match[1], match[3]), set()).add(int(match[2]))
    most = max((max(ranks) for ranks in seen.values()), default=-1)
    return [
        f"{first}{rank}{last}"
        for (first, last), ranks in sorted(seen.items())
        for rank in range(min(most, 9999) + 1)
        if rank not in ranks
    ]


def _missing_by_tracker(files: Mapping[str, int], heads: Mapping[str, Any]) -> list[str]:
    """ms-swift 4.6.0: checkpoint-4/latest_checkpointed_iteration.txt names checkpoint-4/iter_0000004;
    DeepSpeed's is `latest`."""
    missing: list[str] = []
    folders = {name.split("/", 1)[0] for name in files if "/" in name}
    for tracker, form in (("latest_checkpointed_iteration.txt", "iter_{:0>7}"), ("latest", "{}")):
        name = word(mapping(heads.get(tracker)).get("text"))
        if re.fullmatch(r"(?:global_step)?\d{1,9}", name):
            wanted = form.format(name)
            if wanted not in folders:
                missing.append(f"{wanted}/ ({tracker} names it)")
    return missing


def _damaged(files: Mapping[str, int], heads: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} ({why})"
        for name, size in sorted(files.items())
        if (why := _why_damaged(name, size, heads.get(name)))
    ]


def _why_damaged(name: str, size: int, head: Any) -> str:
    if size == 0 and name.endswith(
        (".distcp", ".pt", ".pth", ".bin", ".safetensors", ".metadata", ".index.json")
    ):
        return "empty"
    if not isinstance(head, Mapping):
        return ""
    needs, bad = head.get("needs"), head.get("bad")
    if isinstance(bad, str):
        return bad
    if isinstance(needs, int) and needs != size:
        return f"{size} of {needs} bytes" if size < needs else f"{size} bytes where its header says {needs}"
    return ""


def _names(heads: Mapping[str, Any], name: str) -> list[str] | None:
    names = texts(mapping(heads.get(name)).get("names"))
    return None if names is None else list(names)


def _few(names: list[str]) -> tuple[str, ...]:
    more = len(names) - _MOST_NAMED
    return (*names[:_MOST_NAMED], f"{more} more") if more > 1 else tuple(names)
