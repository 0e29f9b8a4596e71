"""Two runs side by side: what is known of each, and what differs."""
