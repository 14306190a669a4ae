"""Keys and region for clients that only look into the environment."""

import pytest

from forebay_node import ACCESS_KEY, REGION, SECRET_KEY


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
