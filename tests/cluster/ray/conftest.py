"""The jobs need Ray to be imported, and hold no tests."""

collect_ignore_glob = ["jobs/*"]
