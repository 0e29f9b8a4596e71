"""What a run finds, told to the controllers that act on clusters: each in one file, off unless asked for, sent by the
notifier's process, which outlives hub and job. A feed tells; it ends, restarts and drains nothing."""
