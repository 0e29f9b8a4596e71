"""What a command will need of GPU and host memory, from its own arguments."""
