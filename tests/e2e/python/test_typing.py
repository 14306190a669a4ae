"""The stub describes the native module as it is."""

import subprocess
import sys


def test_the_stub_matches_the_module(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "forebay._native", "--ignore-disjoint-bases"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
