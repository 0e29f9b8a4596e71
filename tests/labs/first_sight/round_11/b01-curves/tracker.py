"""Client of the curve server: rows are collected and sent in the background."""
import json
import os
import socket
import subprocess
import sys
import threading


class Run:
    def __init__(self, project):
        here = os.path.dirname(os.path.abspath(__file__))
        self.server = subprocess.Popen([sys.executable, os.path.join(here, "curve_server.py"), project],
                                       stdout=subprocess.PIPE, text=True)
        port = int(self.server.stdout.readline())
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.reader = self.sock.makefile("r")
        self.rows = []
        self.lock = threading.Lock()
        self.wake = threading.Event()
        threading.Thread(target=self._sender, daemon=True).start()

    def log(self, row):
        with self.lock:
            self.rows.append(row)

    def flush(self):
        self.wake.set()

    def _sender(self):
        while True:
            self.wake.wait()
            self.wake.clear()
            with self.lock:
                for row in self.rows:
                    self.sock.sendall((json.dumps(row) + "\n").encode())
                    self.reader.readline()
                self.rows = []

    def finish(self):
        with self.lock:
            self.server.terminate()


class NoRun:
    def log(self, row):
        pass

    flush = finish = lambda self: None


def init_run(project, enabled):
    return Run(project) if enabled else NoRun()
