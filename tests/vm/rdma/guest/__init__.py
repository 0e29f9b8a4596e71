"""What runs inside the virtual machine. Standard library only, Python 3.11."""
