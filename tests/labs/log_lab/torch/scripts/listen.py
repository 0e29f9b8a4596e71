"""Holds a port for a minute."""

import socket
import sys
import time

with socket.create_server(("", int(sys.argv[1]))):
    time.sleep(60)
