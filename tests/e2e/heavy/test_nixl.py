"""NIXL's OBJ plug-in: inference engines move KV blocks to objects with it."""

import pytest

from forebay_node import ACCESS_KEY, REGION, SECRET_KEY, wait_for

pytestmark = pytest.mark.heavy
BYTES = 4 << 20


@pytest.fixture
def agent(node, bucket):
    api = pytest.importorskip("nixl._api", reason="NIXL has an environment of its own: requirements/nixl.txt")
    agent = api.nixl_agent("e2e", api.nixl_agent_config(backends=[]))
    options = {"bucket": bucket, "endpoint_override": node.s3_url, "scheme": "http", "region": REGION}
    options |= {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY, "use_virtual_addressing": "false"}
    agent.create_backend("OBJ", options)
    return agent


def memory(agent, array):
    """Registers an array and returns what a transfer needs to name it."""
    agent.register_memory(agent.get_reg_descs([(array.ctypes.data, BYTES, 0, "")], "DRAM"), backends=["OBJ"])
    return agent.get_xfer_descs([(array.ctypes.data, BYTES, 0)], "DRAM")


def transfer(agent, operation: str, local, remote) -> None:
    handle = agent.initialize_xfer(operation, local, remote, "e2e", backends=["OBJ"])
    agent.transfer(handle)
    wait_for(f"{operation} to finish", lambda: agent.check_xfer_state(handle) == "DONE", 30)


def test_block_is_written_and_read_back(agent, s3, bucket):
    import numpy

    source = numpy.random.default_rng(1).integers(0, 256, BYTES, dtype=numpy.uint8)
    target = numpy.zeros(BYTES, dtype=numpy.uint8)
    agent.register_memory(agent.get_reg_descs([(0, BYTES, 7, "block-7")], "OBJ"), backends=["OBJ"])
    remote = agent.get_xfer_descs([(0, BYTES, 7)], "OBJ")
    transfer(agent, "WRITE", memory(agent, source), remote)
    transfer(agent, "READ", memory(agent, target), remote)
    assert (source == target).all()
    assert s3.head_object(Bucket=bucket, Key="block-7")["ContentLength"] == BYTES
