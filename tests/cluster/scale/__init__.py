"""What a job hub of many nodes costs: a real hub, and one process that plays all other nodes over real HTTP."""
