"""Finds the model that CMD names: a folder with config.json, the Hugging Face or ModelScope cache, or the
table of known models.

Only small local files are read; nothing is asked of a network.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diag.launch.launchers.command import CommandError
from diag.launch.launchers.command.flags import Flags
from diag.preflight.estimate.model_shape import MODELS, Shape, shape_from_config
from diag.text.tables import load_table

_LARGEST = 10_000_000  # bytes: a config.json has a few thousand

# What people's names have beside the size: "Qwen/Qwen3-30B-A3B-Instruct-2507",
# "meta-llama/Meta-Llama-3.1-8B-Instruct".
_TAIL = re.compile(
    r"-(instruct|base|chat|thinking|coder|math|it|hf|bf16|fp8|awq|gptq|int[48]|2507|1m)(?=-|$)"
)
# How a folder is named that holds the same model in Megatron's format, which has no config.json.
_CONVERTED = re.compile(r"[-_.](?:mcore|megatron|torch_dist|tp\d+|pp\d+|ep\d+)(?=$|[-_.])", re.IGNORECASE)


def find_shape(flags: Flags, assumed: list[str], *, plain: bool = False) -> tuple[str, Shape]:
    """(name, shape); adds to what was `assumed`. Raises CommandError that says what to pass."""
    name = flags.text("model", "model_name_or_path", "model_id_or_path", "model_id", "mcore_model", "load")
    if plain and "num_layers" in flags:
        return "as in the flags", _from_flags(flags, assumed)
    if not name:
        hint = "diag estimate --model MODEL -- CMD ..., with a folder that holds its config.json, or a known name"
        raise CommandError("CMD does not name a model", hint=hint)
    config, where = read_config(name, flags.environment, flags.folder)
    if config is None:
        raise CommandError(
            f"the model {name!r} is not known, and there is no config.json of it on this machine",
            hint="diag estimate --model FOLDER -- CMD ..., with a folder that holds its config.json (a few kB are enough, "
            "weights are not read), or one of: " + ", ".join(load_table(MODELS)["models"]),
        )
    if not where.startswith(name) and (plainer := without_format(name)) != name:
        assumed.append(f"{name} is read as {plainer}, by its name: {where}")
    shape, notes = shape_from_config(config, where)
    assumed += notes
    return name, shape


def read_config(
    name: str, environment: Mapping[str, str], folder: Path = Path()
) -> tuple[dict[str, Any] | None, str]:
    """(config, where it was found). None where it is not found."""
    plainer = without_format(name)
    for each in dict.fromkeys((name, plainer)):
        for path in _places(each, environment, folder):
            data = _json(path)
            if data is not None:
                return data, str(path)
    return known_config(plainer), f"the built-in table, {plainer}"


def without_format(name: str) -> str:
    """The name of a model whose folder is named after it and Megatron's format.

    >>> without_format("/models/Qwen3-30B-A3B-Instruct-2507-mcore"), without_format("Qwen2.5-7B_mcore_tp2")
    ('/models/Qwen3-30B-A3B-Instruct-2507', 'Qwen2.5-7B')
    """
    head, slash, last = name.rstrip("/").rpartition("/")
    return head + slash + (_CONVERTED.sub("", last) or last)


def known_config(name: str) -> dict[str, Any] | None:
    """The configuration of a model named as on a hub; None for others.

    >>> known_config("Qwen/Qwen3-30B-A3B-Instruct-2507")["num_experts"]
    128
    >>> known_config("meta-llama/Meta-Llama-3.1-8B")["hidden_size"], known_config("Qwen3-9000B")
    (4096, None)
    """
    word = table_name(name)
    config: dict[str, Any] | None = None if word is None else load_table(MODELS)["models"][word]
    return config


def table_name(name: str) -> str | None:
    """Under which name the built-in table has it; None where it has not.

    >>> table_name("/models/Qwen3-30B-A3B-Instruct-2507-mcore"), table_name("acme/Rocket")
    ('qwen3-30b-a3b', None)
    """
    word = without_format(name).rpartition("/")[2].lower().removeprefix("meta-")
    word = re.sub("(?<=^qwen2.5)-(coder|math)|(?<=^qwen3)-coder", "", word)
    while (shorter := _TAIL.sub("", word)) != word:
        word = shorter
    return word if word in load_table(MODELS)["models"] else None


def _places(name: str, environment: Mapping[str, str], folder: Path) -> list[Path]:
    home = Path(environment.get("HOME") or Path("~").expanduser())
    here = folder / Path(name).expanduser()
    places = [here / "config.json"]
    args = here / "args.json"  # a checkpoint of ms-swift in Megatron's format names its model there
    if args.is_file() and not places[0].is_file():
        saved = _json(args) or {}
        model = saved.get("model_dir") or saved.get("model")
        if isinstance(model, str) and model and model != name:
            places.append(Path(model) / "config.json")
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        hugging_face = Path(environment.get("HF_HOME") or home / ".cache" / "huggingface")
        hub = Path(environment.get("HF_HUB_CACHE") or hugging_face / "hub")
        places += _snapshots(hub / f"models--{name.replace('/', '--')}")
        cache = Path(environment.get("MODELSCOPE_CACHE") or home / ".cache" / "modelscope")
        for root in (cache / "models", cache, cache / "hub" / "models", cache / "hub"):
            places.append(root / name.replace(".", "___") / "config.json")
    return places


def _snapshots(folder: Path) -> list[Path]:
    """Of a Hugging Face cache: the one that refs/main names, then the others."""
    try:
        main = (folder / "refs" / "main").read_text().strip()
        first = [folder / "snapshots" / main / "config.json"]
    except (OSError, ValueError):
        first = []
    try:
        return first + sorted(folder.glob("snapshots/*/config.json"))[:5]
    except OSError:
        return first


def _json(path: Path) -> dict[str, Any] | None:
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST:
            return None
        data = json.loads(path.read_bytes())
    except OSError:
        return None
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CommandError(f"{path} does not hold a JSON object")
    return data


def _from_flags(flags: Flags, assumed: list[str]) -> Shape:
    config: dict[str, Any] = {
        "model_type": "llama",
        "tie_word_embeddings": not flags.flag("untie_embeddings_and_output_weights"),
    }
    for ours, theirs in load_table(MODELS)["megatron_flags"].items():
        value = flags.maybe_whole(ours)
        if value is not None:
            config[theirs] = value
    if "vocab_size" not in config:
        config["vocab_size"] = 131072
        assumed.append("no --vocab_size: 131072 assumed")
    if not flags.flag("swiglu"):
        assumed.append("no --swiglu: the MLP is counted with three matrices all the same")
    config.setdefault("intermediate_size", 4 * int(config.get("hidden_size", 0)) or None)
    shape, notes = shape_from_config(config, "the flags of CMD")
    assumed += notes
    return shape


def longest_sequence(
    flags: Flags, names: Sequence[str], positions: int, assumed: list[str], limit: str
) -> tuple[bool, int, bool]:
    """(whether samples are packed, tokens of the longest sequence, whether CMD limits it), by these flags or the
    model's own `positions`. What CMD does not limit is noted in `assumed`, with the flag that would."""
    packed = flags.flag("packing")
    length = (flags.maybe_whole("packing_length") if packed else None) or flags.maybe_whole(*names)
    given = length is not None
    if length is None:
        length = positions or 4096
        assumed.append(f"no --{limit}: sequences of up to {length:,} tokens, the model's own limit")
    return packed, length, given


def dataset_bytes(flags: Flags) -> int | None:
    """Bytes of the dataset's local files; None where none of them is here. `file.jsonl#5000` takes a part:
    not reckoned."""
    sizes = []
    for word in flags.words("dataset", "cached_dataset", "data_path")[:64]:
        path = flags.folder / Path(word.partition("#")[0]).expanduser()
        with contextlib.suppress(OSError, ValueError):
            if path.is_file():
                sizes.append(path.stat().st_size)
    return sum(sizes) if sizes else None
