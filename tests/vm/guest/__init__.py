"""What runs inside the virtual machine, whichever tests started it. Standard library and diag only, Python
3.11."""
