"""A real S3 server on this machine (rclone), for tests that start, kill and stop it."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

RCLONE = shutil.which("rclone", path=str(Path(sys.executable).parent)) or "rclone"
KEY, SECRET = "an-access-key-1", "a-secret-key-12"


class Server:
    """An S3 server over a directory, which can be killed and started again."""

    def __init__(self, root):
        self.root = root
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [
                *(RCLONE, "serve", "s3", "--addr", f"127.0.0.1:{self.port}"),
                *("--auth-key", f"{KEY},{SECRET}", "--config", os.devnull),
                *("--dir-cache-time", "0s", str(self.root)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 0.2).close()
                return
            except OSError:
                threading.Event().wait(0.05)
        raise RuntimeError("the S3 server did not start")

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def options(self, **other):
        return {
            "endpoint": f"http://127.0.0.1:{self.port}",
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "retry_seconds": 100,
            "timeout_seconds": 5,
            **other,
        }
