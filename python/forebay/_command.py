"""The `forebay` command of the wheel: the code of the binary that cargo builds, run inside the extension module."""

from __future__ import annotations

import os
import signal
import sys

from forebay import _native


def main() -> int:
    """Run the command with the arguments of this process."""
    # As in a process without an interpreter: Ctrl-C ends it, unless the command itself listens (`serve`).
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    program = os.path.basename(sys.argv[0]) if sys.argv else "forebay"
    return _native.run_command([program, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
