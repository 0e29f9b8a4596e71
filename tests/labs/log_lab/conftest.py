"""The scripts are the jobs that are broken: to import one would run it."""

collect_ignore_glob = ["*/scripts/*"]
