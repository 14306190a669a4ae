"""A certificate authority of a test, made with the commands of docs/guides/tls.md."""

import subprocess
from pathlib import Path

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


def openssl(*args: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, args)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class Authority:
    """Signs certificates; `ca` is its own."""

    def __init__(self, folder: Path, name: str = "ca"):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.ca, self.ca_key = folder, folder / f"{name}.pem", folder / f"{name}.key"
        openssl("req", "-x509", *KEY, "-days", "30", "-subj", f"/CN={name}", "-keyout", self.ca_key, "-out", self.ca)

    def node(self, name: str = "node", names: str = "DNS:localhost,IP:127.0.0.1") -> tuple[Path, Path]:
        """A certificate for a node on this host, and its key."""
        return self._sign(name, f"subjectAltName={names}\nextendedKeyUsage=serverAuth\n")

    def client(self, name: str) -> tuple[Path, Path]:
        """A certificate for a client, and its key."""
        return self._sign(name, "extendedKeyUsage=clientAuth\n")

    def _sign(self, name: str, extensions: str) -> tuple[Path, Path]:
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request, settings, signed = (self.folder / f"{name}.{end}" for end in ("csr", "ext", "new"))
        settings.write_text(extensions)
        openssl("req", "-new", *KEY, "-subj", f"/CN={name}", "-keyout", f"{key}.new", "-out", request)
        by = ["-CA", self.ca, "-CAkey", self.ca_key, "-CAcreateserial", "-days", "30"]
        openssl("x509", "-req", "-in", request, *by, "-extfile", settings, "-out", signed)
        Path(f"{key}.new").rename(key)
        signed.rename(cert)
        return cert, key
