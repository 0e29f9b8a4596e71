"""Messages to people who are away: what a run found and how it ended, sent by a process of its own that outlives hub
and job."""
