"""What `diag mcp` gives to agents: the commands that only look, as tools of the Model Context Protocol."""
