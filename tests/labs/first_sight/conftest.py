"""The jobs of a round are programs: to import one would run it."""

collect_ignore_glob = ["round_*"]
