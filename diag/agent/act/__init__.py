"""What `diag run --on` does about a finding: whether (`gates`), from which facts (`cases`), and doing it (`actor`)."""
