"""Fixtures: a shared node for each kind of lake, nodes of a test's own, fresh buckets.

`node` is shared by the whole session (cheap; tests keep to their own bucket). `own_node` makes nodes that a test
may kill. `any_node` runs a test once on a folder lake and once on SeaweedFS.
"""

import itertools
import os
import shutil
import uuid

import pytest

from forebay_node import Node, client_for

_names = itertools.count(1)


def pytest_runtest_makereport(item, call):
    """A failing test shows the end of the log of every node it used."""
    if call.when == "call" and call.excinfo:
        nodes = [value for value in item.funcargs.values() if isinstance(value, Node)]
        for node in {id(node): node for node in nodes + getattr(item, "own_nodes", [])}.values():
            lines = [line for line in node.log_text().splitlines() if "forebay::access" not in line]
            item.add_report_section("call", f"log of {node.root}", "\n".join(lines[-20:]))


def seaweed_endpoint() -> str:
    """The S3 server that xtask started, or a skip with the reason."""
    endpoint = os.environ.get("FOREBAY_TEST_S3_ENDPOINT")
    if not endpoint:
        pytest.skip("FOREBAY_TEST_S3_ENDPOINT is not set: no SeaweedFS to stand behind the node")
    return endpoint


def seaweed_client():
    """boto3 straight to SeaweedFS, past any node."""
    return client_for(
        seaweed_endpoint(),
        key=os.environ["FOREBAY_TEST_S3_KEY"],
        secret=os.environ["FOREBAY_TEST_S3_SECRET"],
    )


def seaweed_lake(endpoint: str | None = None) -> tuple[str, str, dict]:
    """A new bucket in SeaweedFS: its name, the lake URL, and the environment that gives a node the keys."""
    bucket = f"lake-{uuid.uuid4().hex[:12]}"
    seaweed_client().create_bucket(Bucket=bucket)
    url = f"s3://{bucket}?endpoint={endpoint or seaweed_endpoint()}&region=us-east-1&style=path"
    keys = {
        "AWS_ACCESS_KEY_ID": os.environ["FOREBAY_TEST_S3_KEY"],
        "AWS_SECRET_ACCESS_KEY": os.environ["FOREBAY_TEST_S3_SECRET"],
    }
    return bucket, url, keys


@pytest.fixture(scope="session")
def folder_node(tmp_path_factory):
    with Node(tmp_path_factory.mktemp("folder-node")) as node:
        yield node


@pytest.fixture(scope="session")
def seaweed_node(tmp_path_factory):
    _, url, env = seaweed_lake()
    with Node(tmp_path_factory.mktemp("seaweed-node"), lake=url, env=env) as node:
        yield node


@pytest.fixture
def node(folder_node):
    """The shared node on a folder lake."""
    return folder_node


@pytest.fixture(params=["folder", "seaweed"])
def any_node(request):
    """The shared node on each kind of lake in turn."""
    return request.getfixturevalue(f"{request.param}_node")


@pytest.fixture
def own_node(request, tmp_path):
    """Makes nodes that belong to the test alone; they are killed and removed at its end."""
    nodes = request.node.own_nodes = []

    def make(**options) -> Node:
        root = tmp_path / f"node-{len(nodes)}"
        root.mkdir()
        nodes.append(Node(root, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.kill()
        shutil.rmtree(node.root, ignore_errors=True)


def new_bucket(client) -> str:
    """A bucket with a name that no other test has."""
    name = f"bucket-{os.getpid()}-{next(_names)}"
    client.create_bucket(Bucket=name)
    return name


@pytest.fixture
def s3(node):
    return node.client()


@pytest.fixture
def bucket(s3):
    return new_bucket(s3)


@pytest.fixture
def any_s3(any_node):
    return any_node.client()


@pytest.fixture
def any_bucket(any_s3):
    return new_bucket(any_s3)
