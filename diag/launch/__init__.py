"""`diag run` in two processes: the *carrier*, small and without third-party code, starts CMD and carries its
output, signals and exit code; the *hub* beside it watches, serves, and may die without CMD noticing."""
