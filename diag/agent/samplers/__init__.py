"""What the hub reads once a node, each in a thread of its own, so that none can hold up the others or the
job."""
