"""What runs inside the virtual machine. Standard library and diag only, Python 3.11."""
