"""Makes the quick copies of diag's own tables, rules and manual (`diag.text.compiled`), when the package is built. Needs
nothing but PyYAML."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from diag.outputs import manual
from diag.text.compiled import FOLDER, PACKAGE, RULES, name_of, rule_sources, survives, write


def compile_all(folder: Path) -> int:
    """Returns the number of copies. What JSON cannot say stays YAML alone."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    tables = sorted(path for path in PACKAGE.rglob("*.yaml") if "_data" not in path.parts)
    sources = {name_of(path): [path.read_bytes()] for path in tables}
    values = {name: yaml.load(source, loader) for name, (source,) in sources.items()}
    sources[RULES] = rule_sources(PACKAGE.parent / "rules" / "signatures")
    values[RULES] = [yaml.load(source, loader) for source in sources[RULES]]
    for lang in manual.LANGUAGES:
        name = manual.copy_of(lang)
        sources[name] = manual.sources(lang)
        values[name] = manual.rendered(lang)
    folder.mkdir(parents=True, exist_ok=True)
    copied = {name: value for name, value in values.items() if survives(value)}
    for name, value in copied.items():
        write(folder, name, sources[name], value)
    return len(copied)


if __name__ == "__main__":
    print(f"{compile_all(Path(sys.argv[1]) if sys.argv[1:] else FOLDER)} copies")
