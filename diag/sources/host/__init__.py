"""The node: processes, cgroups, shared memory, kernel messages."""
