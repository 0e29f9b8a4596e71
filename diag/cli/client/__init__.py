"""How commands find a hub and ask it."""
