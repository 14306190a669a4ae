"""The `forebay` of the wheel behaves as the one that cargo builds."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import forebay
from forebay_node import Node, binary, wait_for

SCRIPT = Path(sys.executable).with_name("forebay")


def scripts():
    """Both commands; the wheel's script is there only if the wheel is installed."""
    if not SCRIPT.exists():
        pytest.skip("the wheel is not installed here: run `cargo xtask test --python`")
    return str(SCRIPT), binary()


def run(program: str, *args: str, **env: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [program, *args], capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "100", **env}
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["--version"],
        ["--help"],
        ["serve", "--help"],
        [],
        ["no-such-command"],
        ["serve", "--ram", "much"],
        ["cp", "a"],
        ["status", "--admin", "http://127.0.0.1:1"],
        ["--json", "config", "--lake", "memory://", "--ram", "1GiB", "--nvme", "0", "--data", "/nonexistent"],
    ],
    ids=" ".join,
)
def test_both_commands_answer_the_same(args):
    ours, cargo = (run(program, *args) for program in scripts())
    assert ours == cargo


def test_the_version_is_the_packages():
    assert run(scripts()[0], "--version")[1].split() == ["forebay", forebay.__version__]


def test_the_wheel_serves(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_TEST_BINARY", scripts()[0])
    with Node(tmp_path, args=["--socket", str(tmp_path / "n.sock")]) as process:
        with forebay.connect(str(tmp_path / "n.sock")) as node:
            node.create_bucket("demo")
            node.put("demo/a", b"abc")
        assert process.client().get_object(Bucket="demo", Key="a")["Body"].read() == b"abc"
        assert process.stop() == 0


def test_ctrl_c_stops_a_served_node_as_a_signal_stops_the_binary(tmp_path, monkeypatch):
    for name, program in zip(("wheel", "cargo"), scripts(), strict=True):
        monkeypatch.setenv("FOREBAY_TEST_BINARY", program)
        root = tmp_path / name
        root.mkdir()
        with Node(root, args=["--socket", str(root / "n.sock")]) as process:
            process.process.send_signal(signal.SIGINT)
            assert process.process.wait(30) == 0


def test_the_ready_file_names_the_socket(tmp_path):
    with Node(tmp_path, args=["--socket", str(tmp_path / "n.sock")]) as process:
        assert json.loads(process.ready_file.read_text())["socket"] == str(tmp_path / "n.sock")
        wait_for("the socket", (tmp_path / "n.sock").exists)
