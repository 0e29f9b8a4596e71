"""Rules for lines of logs: one YAML file each (rules/signatures/FAMILY/*.yaml, and `--rules DIR`), no code in
them."""
