"""A `forebay serve` process under test: start, stop, kill, restart, and look at it from outside.

Every node gets ports of its own (`--s3 127.0.0.1:0`, told back by `--ready-file`), a data folder of its own and a
log file that a failing test shows. All waits have deadlines.
"""

import json
import os
import re
import signal
import ssl
import subprocess
import time
import urllib.request
from pathlib import Path

ACCESS_KEY = "e2e-access-key"
SECRET_KEY = "e2e-secret-access-key-0123456789"
REGION = "us-east-1"
READY_SECONDS_MAX = 60
STOP_SECONDS_MAX = 40


def binary() -> str:
    """The program under test."""
    found = os.environ.get("FOREBAY_TEST_BINARY")
    assert found, "FOREBAY_TEST_BINARY names no binary: run `cargo xtask test --python`"
    return found


def wait_for(what: str, check, seconds_max: float = 20.0, pause: float = 0.005):
    """Polls `check` until it returns something true and returns that."""
    deadline = time.monotonic() + seconds_max
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds_max} s for {what}"
        time.sleep(pause)


def client_for(endpoint: str, key: str = ACCESS_KEY, secret: str = SECRET_KEY, ca: Path | None = None, **config):
    """A boto3 client that shows every error at once instead of trying again; `ca` is the authority that it trusts."""
    import boto3
    from botocore.config import Config

    settings = {
        "retries": {"total_max_attempts": 1},
        "signature_version": "s3v4",  # boto3 still presigns with version 2 unless told
        "s3": {"addressing_style": "path"},
        "max_pool_connections": 80,
        "read_timeout": 120,
    }
    settings.update(config)
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        verify=ca and str(ca),
        config=Config(**settings),
    )


class Node:
    """One node. `root` holds its data folder, its log and, for a folder lake, the lake."""

    def __init__(
        self, root: Path, lake: str | None = None, ram="64MiB", nvme="256MiB", env=None, config=None, args=(), ca=None
    ):
        self.root = Path(root)
        self.data = self.root / "data"
        self.lake_dir = self.root / "lake"
        self.lake = lake or f"file://{self.lake_dir}"
        self.ram, self.nvme, self.env, self.args = ram, nvme, dict(env or {}), list(args)
        self.keys = True
        self.listen = "127.0.0.1:0"
        self.ca: Path | None = ca
        self.log = self.root / "node.log"
        self.ready_file = self.root / "ready.json"
        self.process: subprocess.Popen | None = None
        self.s3_url = self.admin_url = ""
        self.lake_dir.mkdir(parents=True, exist_ok=True)
        if config:
            path = self.root / "forebay.toml"
            path.write_text(config)
            self.args += ["--config", str(path)]

    # --- life cycle ---

    def start(self) -> "Node":
        """Starts it and returns when it says that it is ready."""
        assert self.process is None, "the node is running already"
        self.ready_file.unlink(missing_ok=True)
        command = [binary(), "serve", "--lake", self.lake, "--data", str(self.data), "--ram", self.ram, "--nvme", self.nvme]
        command += ["--s3", self.listen, "--admin", "127.0.0.1:0", "--ready-file", str(self.ready_file), *self.args]
        env = dict(os.environ)
        if self.keys:
            env.update({"FOREBAY_ACCESS_KEY_ID": ACCESS_KEY, "FOREBAY_SECRET_ACCESS_KEY": SECRET_KEY})
        env.update(self.env)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        wait_for("the node to be ready", self._is_ready, READY_SECONDS_MAX)
        return self

    def _is_ready(self) -> bool:
        status = self.process.poll()
        assert status is None, f"the node ended with {status}:\n{self.log_text()[-3000:]}"
        try:
            addresses = json.loads(self.ready_file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return False
        self.s3_url, self.admin_url = addresses["s3"], addresses["admin"]
        return True

    def kill(self) -> None:
        """kill -9, as a power cut for the process."""
        if self.process:
            self.process.kill()
            self.process.wait(STOP_SECONDS_MAX)
            self.process = None

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP_SECONDS_MAX)
        self.process = None
        return status

    def restart(self) -> "Node":
        """kill -9, then start again on the same data."""
        self.kill()
        return self.start()

    def __enter__(self) -> "Node":
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, *_):
        self.kill()

    # --- looking at it ---

    def client(self, **options):
        """A boto3 client of this node."""
        return client_for(self.s3_url, **{"ca": self.ca, **options})

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def admin(self, path: str) -> str:
        """GET on the admin API."""
        tls = ssl.create_default_context(cafile=self.ca) if self.ca else None
        with urllib.request.urlopen(self.admin_url + path, timeout=20, context=tls) as answer:
            return answer.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all series of a metric that carry these labels; 0 if there is none."""
        total = 0.0
        for line in self.admin("/metrics").splitlines():
            found = re.match(r"([A-Za-z_:][\w:]*)(?:\{(.*?)\})? ([-+.\deE]+|NaN)", line)
            if not found or found[1] != name:
                continue
            have = dict(re.findall(r'(\w+)="(.*?)"', found[2] or ""))
            if all(have.get(key) == value for key, value in labels.items()):
                total += float(found[3])
        return total

    def lake_read_bytes(self) -> int:
        """Bytes that the node has read from its lake so far."""
        return int(self.metric("forebay_lake_read_bytes_total"))

    def resident_bytes(self) -> int:
        """Anonymous, file-backed and shared memory of the process together."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024

    def segment_files(self) -> list[Path]:
        """Files of the NVMe tier, largest first."""
        files = [path for path in self.data.rglob("*") if path.is_file() and path.stat().st_size >= 64 * 1024]
        return sorted(files, key=lambda path: -path.stat().st_size)
