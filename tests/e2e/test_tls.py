"""TLS on both doors of a node: boto3, the command and plain sockets against it."""

import json
import os
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

import pytest
from botocore.exceptions import ClientError, SSLError

from authority import Authority
from forebay_node import ACCESS_KEY, SECRET_KEY, binary, client_for, wait_for


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


@pytest.fixture
def tls_node(own_node, authority):
    """A node with a certificate for this host; `client_ca=True` makes it ask for client certificates."""

    def make(client_ca: bool = False):
        cert, key = authority.node()
        args = ["--tls-cert", str(cert), "--tls-key", str(key)]
        args += ["--tls-client-ca", str(authority.ca)] if client_ca else []
        return own_node(args=args, ca=authority.ca)

    return make


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_boto3_works_over_tls(tls_node):
    node = tls_node().start()
    assert node.s3_url.startswith("https://") and node.admin_url.startswith("https://")
    s3 = node.client()
    s3.create_bucket(Bucket="tls")
    body = os.urandom(9 << 20)
    s3.put_object(Bucket="tls", Key="a", Body=body)
    assert s3.get_object(Bucket="tls", Key="a")["Body"].read() == body
    part = s3.get_object(Bucket="tls", Key="a", Range="bytes=70000-5000000")["Body"].read()
    assert part == body[70000:5000001]
    assert json.loads(node.admin("/v1/status"))["s3"] == node.s3_url


def test_a_certificate_of_another_authority_is_refused(tls_node, tmp_path):
    node = tls_node().start()
    other = Authority(tmp_path / "other")
    with pytest.raises(SSLError):
        node.client(ca=other.ca).list_buckets()
    env = {**os.environ, "FOREBAY_CA": str(other.ca)}
    done = subprocess.run(
        [binary(), "status", "--admin", node.admin_url], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0 and "--ca" in done.stderr, done.stderr


def test_the_command_goes_over_tls(tls_node, tmp_path):
    node = tls_node().start()
    file = tmp_path / "hello.txt"
    file.write_text("hello over tls")
    env = {**os.environ, "FOREBAY_ACCESS_KEY_ID": ACCESS_KEY, "FOREBAY_SECRET_ACCESS_KEY": SECRET_KEY}
    env.pop("FOREBAY_CA", None)

    def run(*words: str) -> str:
        ca = ["--ca", str(node.ca)]
        done = subprocess.run([binary(), *words, *ca], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    run("status", "--admin", node.admin_url)
    run("bucket", "create", "demo", "--endpoint", node.s3_url)
    run("cp", str(file), "forebay://demo/hello.txt", "--endpoint", node.s3_url)
    assert run("cat", "forebay://demo/hello.txt", "--node", node.s3_url) == "hello over tls"


def test_plain_http_to_a_tls_port_is_told_so_at_once(tls_node):
    node = tls_node().start()
    for url in (node.s3_url, node.admin_url):
        began = time.monotonic()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(url.replace("https://", "http://"), timeout=20)
        assert refused.value.code == 400 and b"https://" in refused.value.read()
        assert time.monotonic() - began < 5
    with pytest.raises(ClientError, match="https://"):
        client_for(node.s3_url.replace("https://", "http://")).list_buckets()


def test_tls_to_a_plain_port_is_told_so(node):
    done = subprocess.run(
        [binary(), "status", "--admin", node.admin_url.replace("http://", "https://")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0 and "http://" in done.stderr, done.stderr


def test_clients_without_a_certificate_stay_outside_where_one_is_asked_for(tls_node, authority):
    node = tls_node(client_ca=True).start()
    with pytest.raises(Exception, match="(?i)certificate|reset|aborted|closed"):
        node.client().list_buckets()
    with pytest.raises(OSError):
        node.admin("/healthz")
    cert, key = authority.client("trainer")
    assert node.client(client_cert=(str(cert), str(key))).list_buckets()["Buckets"] == []
    tls = ssl.create_default_context(cafile=authority.ca)
    tls.load_cert_chain(cert, key)
    with urllib.request.urlopen(node.admin_url + "/healthz", timeout=20, context=tls) as answer:
        assert answer.status == 200


def served_subject(node) -> str:
    tls = ssl.create_default_context(cafile=node.ca)
    with socket.create_connection(("127.0.0.1", port_of(node.s3_url)), timeout=20) as plain:
        with tls.wrap_socket(plain, server_hostname="localhost") as secured:
            return dict(pair for (pair,) in secured.getpeercert()["subject"])["commonName"]


def test_a_certificate_is_replaced_while_requests_run_and_none_fails(tls_node, authority):
    node = tls_node().start()
    s3 = node.client()
    s3.create_bucket(Bucket="tls")
    s3.put_object(Bucket="tls", Key="a", Body=b"x" * 100_000)
    failures, done, stop = [], [0], threading.Event()

    def read(fresh: bool):
        client = node.client()
        while not stop.is_set():
            try:
                mine = node.client() if fresh else client
                assert len(mine.get_object(Bucket="tls", Key="a")["Body"].read()) == 100_000
                done[0] += 1
            except Exception as error:  # noqa: BLE001 - any failure is one
                failures.append(error)

    threads = [threading.Thread(target=read, args=(fresh,)) for fresh in (False, False, True)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(3):
            fresh_cert, fresh_key = authority.node(f"renewed-{turn}")
            cert, key = authority.folder / "node.pem", authority.folder / "node.key"
            fresh_key.rename(key)
            fresh_cert.rename(cert)
            wait_for("the new certificate", lambda turn=turn: served_subject(node) == f"renewed-{turn}", 20, 0.1)
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not failures and done[0] > 3, failures[:3]


def test_a_broken_new_certificate_keeps_the_old_one_and_is_warned_about_once(tls_node, authority):
    node = tls_node().start()
    (authority.folder / "node.pem").write_text("half a certif")
    warning = "the new TLS certificate cannot be used"

    def warned() -> bool:
        assert served_subject(node) == "node"
        return warning in node.log_text()

    wait_for("the warning", warned, 20, 0.2)
    time.sleep(2.5)
    assert served_subject(node) == "node"
    assert node.log_text().count(warning) == 1


def test_silent_connections_do_not_starve_others(tls_node):
    node = tls_node().start()
    silent = [socket.create_connection(("127.0.0.1", port_of(node.s3_url)), timeout=30) for _ in range(300)]
    try:
        began = time.monotonic()
        node.client().list_buckets()
        assert time.monotonic() - began < 10
        # Their handshake has ten seconds, less where others wait.
        for one in silent:
            assert one.recv(100) == b""
    finally:
        for one in silent:
            one.close()


def test_a_key_that_others_may_read_is_warned_about(tls_node, authority):
    node = tls_node()
    (authority.folder / "node.key").chmod(0o644)
    node.start()
    assert "other users may read the private key" in node.log_text()


def test_beyond_loopback_without_tls_the_node_warns(own_node):
    node = own_node()
    node.listen = "0.0.0.0:0"
    node.start()
    assert "not encrypted" in node.log_text()


def test_wrong_tls_settings_are_refused_in_one_line(own_node, authority, tmp_path):
    cert, key = authority.node()
    _, other_key = authority.node("other")
    for args, words in [
        (["--tls-cert", str(cert)], "tls.key"),
        (["--tls-cert", str(cert), "--tls-key", str(other_key)], "do not belong together"),
        (["--tls-cert", str(tmp_path / "nothing.pem"), "--tls-key", str(key)], "nothing.pem"),
    ]:
        command = [binary(), "serve", "--data", str(tmp_path / "data"), "--s3", "127.0.0.1:0", "--admin", "off", *args]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and words in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
