"""What people had who `diag` is for, and what it must tell them: their facts, in texts of our own."""
