"""Running command-line S3 clients against a node."""

import os
import shutil
import subprocess

import pytest

from forebay_node import ACCESS_KEY, REGION, SECRET_KEY


def program(name: str) -> str:
    """The path of a program, or a skip that says how to get it."""
    found = shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed (`apt-get install {name}`, or let `cargo xtask test` run as root)")
    return found


def run(*command: str, ok: bool = True, env: dict | None = None, input: bytes | None = None) -> subprocess.CompletedProcess:
    """Runs to the end with the node's keys in the environment and nothing else of AWS."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    clean.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_DEFAULT_REGION=REGION)
    clean.update(AWS_REGION=REGION, AWS_EC2_METADATA_DISABLED="true", AWS_CONFIG_FILE="/nonexistent", **(env or {}))
    done = subprocess.run(command, capture_output=True, env=clean, input=input, timeout=180)
    if ok:
        assert done.returncode == 0, f"{command} failed:\n{done.stdout.decode()}\n{done.stderr.decode()}"
    return done


def tree(folder) -> dict[str, bytes]:
    """Every file below a folder with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
