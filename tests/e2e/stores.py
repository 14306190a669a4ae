"""SeaweedFS behind a node, and fresh buckets in front of one."""

import itertools
import os
import uuid

import pytest

from forebay_node import client_for

_names = itertools.count(1)


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


def new_bucket(client) -> str:
    """A bucket with a name that no other test has."""
    name = f"bucket-{os.getpid()}-{next(_names)}"
    client.create_bucket(Bucket=name)
    return name
