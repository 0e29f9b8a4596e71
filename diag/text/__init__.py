"""How diag writes for people: numbers, errors, colours, what is safe to print. Knows no job."""
