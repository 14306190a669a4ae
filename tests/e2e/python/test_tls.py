"""The package over TLS: `https://` addresses, a CA of one's own, client certificates, pickles and forks."""

import os
import pickle

import fsspec
import pytest

import forebay
from authority import Authority


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path / "authority")


@pytest.fixture
def tls_daemon(daemon, authority):
    def start(client_ca: bool = False):
        cert, key = authority.node()
        args = ["--tls-cert", str(cert), "--tls-key", str(key)]
        return daemon(args=args + (["--tls-client-ca", str(authority.ca)] if client_ca else []), ca=authority.ca)

    return start


def test_a_node_at_https_reads_and_writes(tls_daemon, authority):
    process = tls_daemon()
    with forebay.connect(process.s3_url, ca=authority.ca) as node:
        assert node.address == process.s3_url
        node.create_bucket("tls")
        body = os.urandom(9 << 20)
        node.put("tls/a", body)
        assert bytes(node.get("tls/a")) == body
        assert node.read("tls/a", 100, 1000) == body[100:1100]
        again = pickle.loads(pickle.dumps(node))
        assert again.read("tls/a", 0, 10) == body[:10]
        child = os.fork()
        if child == 0:
            os._exit(0 if bytes(node.get("tls/a")) == body else 1)
        assert bytes(node.get("tls/a")) == body
        assert os.waitpid(child, 0)[1] == 0
        assert bytes(node.get("tls/a")) == body


def test_what_is_not_trusted_is_refused_with_advice(tls_daemon, tmp_path):
    process = tls_daemon()
    other = Authority(tmp_path / "other")
    with pytest.raises(forebay.DeniedError, match="ca="):
        forebay.connect(process.s3_url, ca=other.ca)
    with pytest.raises(forebay.ForebayError, match="https://"):
        forebay.connect(process.s3_url.replace("https://", "http://"))


def test_a_client_certificate_is_shown_where_it_is_asked_for(tls_daemon, authority):
    process = tls_daemon(client_ca=True)
    with pytest.raises(forebay.DeniedError, match="FOREBAY_CLIENT_CERT"):
        forebay.connect(process.s3_url, ca=authority.ca)
    cert, key = authority.client("trainer")
    with forebay.connect(process.s3_url, ca=authority.ca, cert=cert, key=key) as node:
        assert node.buckets() == []


def test_fsspec_takes_the_ca_as_a_storage_option(tls_daemon, authority):
    process = tls_daemon()
    options = {"address": process.s3_url, "ca": str(authority.ca), "skip_instance_cache": True}
    files = fsspec.filesystem("forebay", **options)
    files.mkdir("tls")
    files.pipe_file("tls/a", b"hello")
    with fsspec.open("forebay://tls/a", **options) as file:
        assert file.read() == b"hello"
