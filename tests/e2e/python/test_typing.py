"""The stub describes the native module as it is."""

import subprocess
import sys


#: Special methods that Python shows from 3.12 on; before, only the buffer protocol itself is there.
FROM_3_12 = [
    rf"forebay._native.{name}.__{method}__"
    for name in ("View", "WritableBuffer")
    for method in ("buffer", "release_buffer")
] + [r"forebay._native.PackedMemory.__buffer__"]


def test_the_stub_matches_the_module(tmp_path):
    allowed = tmp_path / "allowed"
    allowed.write_text("\n".join(FROM_3_12 if sys.version_info < (3, 12) else []))
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "forebay._native", "--ignore-disjoint-bases", "--allowlist", str(allowed)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
