"""Fixtures: a shared node for each kind of lake, nodes of a test's own, fresh buckets.

`node` is shared by the whole session (cheap; tests keep to their own bucket). `own_node` makes nodes that a test
may kill. `any_node` runs a test once on a folder lake and once on SeaweedFS.
"""

import shutil

import pytest

from forebay_node import ACCESS_KEY, REGION, SECRET_KEY, Node
from stores import new_bucket, seaweed_lake


def pytest_runtest_makereport(item, call):
    """A failing test shows the end of the log of every node it used."""
    if call.when == "call" and call.excinfo:
        nodes = [value for value in item.funcargs.values() if isinstance(value, Node)]
        for node in {id(node): node for node in nodes + getattr(item, "own_nodes", [])}.values():
            lines = [line for line in node.log_text().splitlines() if "forebay::access" not in line]
            item.add_report_section("call", f"log of {node.root}", "\n".join(lines[-20:]))


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


@pytest.fixture
def aws_environment(monkeypatch, node):
    """The usual variables point to the shared node."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_REGION", REGION)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_ENDPOINT_URL", node.s3_url)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return node
