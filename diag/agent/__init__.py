"""What runs beside a job: the hub of a node, its sidecars and samplers, the hubs of many nodes."""
