"""A Ceph cluster of one monitor, one OSD in memory and one gateway: the most complete S3 server there is in Debian.

No manager, no network but loopback, everything in one folder. Authentication must be cephx: without it the gateway
waits five minutes for a configuration. Old (16.2), which is why it is worth testing: it wants ETags unquoted.
"""

import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
import uuid
from pathlib import Path

import pytest

from forebay_node import wait_for

PROGRAMS = ["ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "ceph-authtool", "monmaptool"]
PACKAGES = "ceph-mon ceph-osd radosgw ceph-common"
KEY, SECRET = "rgw-test-key", "rgw-test-secret"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class CephRgw:
    """Starts with `with`, is killed at the end."""

    def __init__(self, root: Path):
        missing = [name for name in PROGRAMS if not shutil.which(name)]
        if missing:
            pytest.skip(f"{', '.join(missing)} not installed: `apt-get install --no-install-recommends {PACKAGES}`")
        self.root, self.processes = Path(root), []
        self.mon_port, self.port = free_port(), free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.config, self.keyring = self.root / "ceph.conf", self.root / "keyring"
        self.fsid = str(uuid.uuid4())

    def __enter__(self) -> "CephRgw":
        try:
            self._configure()
            self._monitor()
            self._osd()
            self._gateway()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.kill()
            process.wait()

    def _run(self, *command: str) -> str:
        done = subprocess.run([*command], capture_output=True, timeout=120, cwd=self.root)
        assert done.returncode == 0, f"{command} failed:\n{done.stdout.decode()}{done.stderr.decode()}"
        return done.stdout.decode()

    def _ceph(self, *command: str) -> str:
        return self._run("ceph", "-c", str(self.config), "--connect-timeout", "30", *command)

    def _spawn(self, *command: str) -> None:
        with open(self.root / f"{command[0]}.out", "wb") as log:
            self.processes.append(subprocess.Popen([*command], stdout=log, stderr=log, cwd=self.root))

    def _configure(self) -> None:
        for name in ["mon", "osd", "rgw", "run"]:
            (self.root / name).mkdir()
        self.config.write_text(
            f"""[global]
fsid = {self.fsid}
mon_host = v1:127.0.0.1:{self.mon_port}
public_addr = 127.0.0.1
keyring = {self.keyring}
run_dir = {self.root}/run
admin_socket = {self.root}/run/$name.asok
log_file = {self.root}/$name.log
pid_file =
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = memstore
memstore_device_bytes = 2147483648
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_data = {self.root}/mon
osd_data = {self.root}/osd
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{self.port}
rgw_data = {self.root}/rgw
"""
        )
        allow = ["--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *"]
        self._run("ceph-authtool", "--create-keyring", str(self.keyring), "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        for name in ["client.admin", "osd.0", "client.rgw"]:
            self._run("ceph-authtool", str(self.keyring), "--gen-key", "-n", name, *allow)

    def _monitor(self) -> None:
        self._run("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{self.mon_port}]", "--fsid", self.fsid, "monmap")
        conf = ["-c", str(self.config)]
        self._run("ceph-mon", *conf, "--mkfs", "-i", "a", "--monmap", "monmap", "--keyring", str(self.keyring))
        self._spawn("ceph-mon", *conf, "-f", "-i", "a", "--public-addr", f"v1:127.0.0.1:{self.mon_port}")

    def _osd(self) -> None:
        osd = str(uuid.uuid4())
        self._ceph("osd", "new", osd, "0")
        conf = ["-c", str(self.config)]
        self._run("ceph-osd", *conf, "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._spawn("ceph-osd", *conf, "-f", "-i", "0")
        wait_for("the OSD", lambda: "1 up" in self._ceph("osd", "stat"), 60, pause=0.3)

    def _gateway(self) -> None:
        conf = ["-c", str(self.config), "-n", "client.rgw"]
        self._spawn("radosgw", *conf, "-f")
        wait_for("the gateway", self._answers, 120, pause=0.3)
        user = ["user", "create", "--uid=test", "--display-name=test", f"--access-key={KEY}", f"--secret={SECRET}"]
        self._run("radosgw-admin", *conf, *user)

    def _answers(self) -> bool:
        for process in self.processes:
            assert process.poll() is None, f"{process.args[0]} ended; see {self.root}"
        try:
            return urllib.request.urlopen(self.endpoint, timeout=5).status == 200
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False


def environment() -> dict[str, str]:
    """What a node needs to reach the gateway."""
    return {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "HOME": os.environ.get("HOME", "/")}
