"""Puts quick copies of diag's own YAML into the wheel. Without PyYAML there are none: diag then starts slower."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledTables(BuildHookInterface):  # type: ignore[type-arg]
    """See the module. An installation that points to a checkout reads the YAML: there it is edited."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        try:
            from diag.cli.compiling import compile_all

            self._made = tempfile.TemporaryDirectory(prefix="diag-build-")
            compile_all(Path(self._made.name))
        except ModuleNotFoundError as error:
            self.app.display_warning(f"the tables of diag are not compiled: {error}")
            return
        finally:
            sys.path.remove(self.root)
        build_data["force_include"][self._made.name] = "diag/_data/compiled"
