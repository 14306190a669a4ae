"""JAX: TensorStore writes through the S3 edge, Orbax's folders go through `forebay://`, our steps hold JAX's arrays.

Orbax itself writes to folders and `gs://` only, so its checkpoints are put and got as folders.
"""

import uuid

import pytest

pytestmark = pytest.mark.heavy
ocp = pytest.importorskip("orbax.checkpoint", reason="Orbax has an environment of its own: requirements/orbax.txt")
forebay = pytest.importorskip("forebay", reason="the wheel is installed by `cargo xtask test --all`")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import tensorstore as ts  # noqa: E402
from forebay.fsspec import ForebayFileSystem  # noqa: E402
from forebay_node import REGION, Node  # noqa: E402


@pytest.fixture(scope="module")
def package_node(tmp_path_factory):
    root = tmp_path_factory.mktemp("daemon")
    with Node(root, ram="256MiB", args=["--socket", str(root / "n.sock")]):
        with forebay.connect(str(root / "n.sock")) as node:
            yield node


@pytest.fixture
def folder(package_node):
    name = f"b-{uuid.uuid4().hex[:12]}"
    package_node.create_bucket(name)
    return name


def state():
    keys = jax.random.split(jax.random.key(7), 4)
    return {
        "params": {
            "dense": {"kernel": jax.random.normal(keys[0], (512, 300)), "bias": jnp.arange(300.0)},
            "half": jax.random.normal(keys[1], (64, 64)).astype(jnp.bfloat16),
            "large": jax.random.normal(keys[2], (2048, 1024)),
        },
        "step": jnp.int32(1000),
        "mask": jax.random.bernoulli(keys[3], shape=(33,)),
    }


def later(state, step):
    """Another state for each step."""
    return jax.tree.map(lambda leaf: leaf + leaf.dtype.type(step), state)


def assert_same(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("driver", ["zarr", "zarr3"])
@pytest.mark.parametrize("ocdbt", [False, True], ids=["plain", "ocdbt"])
def test_tensorstore_writes_and_reads_arrays_through_the_edge(aws_environment, bucket, driver, ocdbt):
    """The layouts that Orbax gives its arrays."""
    base = {"driver": "s3", "bucket": bucket, "endpoint": aws_environment.s3_url, "aws_region": REGION}
    base |= {"aws_credentials": {"type": "environment"}}

    def spec(name):
        if ocdbt:
            store = {"driver": "ocdbt", "base": {**base, "path": "run/"}, "path": f"{name}/"}
        else:
            store = {**base, "path": f"run/{name}/"}
        return {"driver": driver, "kvstore": store}

    arrays = {
        "/".join(str(part.key) for part in path): np.asarray(value)
        for path, value in jax.tree_util.tree_leaves_with_path(state())
    }
    for name, array in arrays.items():
        opened = ts.open(spec(name), create=True, dtype=array.dtype, shape=array.shape).result()
        opened.write(array).result()
    for name, array in arrays.items():
        # Another context: nothing of what was written is remembered.
        found = ts.open(spec(name), context=ts.Context()).result().read().result()
        assert found.dtype == array.dtype and np.array_equal(found, array), name
    rows = ts.open(spec("params/large"), context=ts.Context()).result()[1000:1003].read().result()
    assert np.array_equal(rows, arrays["params/large"][1000:1003])


def test_a_folder_of_orbax_goes_through_the_lake(package_node, folder, tmp_path):
    fs = ForebayFileSystem(node=package_node)
    wanted = state()
    with ocp.CheckpointManager(tmp_path / "run", options=ocp.CheckpointManagerOptions(max_to_keep=2)) as manager:
        for step in (1, 2, 3):
            manager.save(step, args=ocp.args.StandardSave(later(wanted, step)))
        manager.wait_until_finished()
        assert manager.all_steps() == [2, 3]
    fs.put(f"{tmp_path}/run/", f"forebay://{folder}/run/", recursive=True)
    fs.get(f"forebay://{folder}/run/", f"{tmp_path}/again/", recursive=True)
    with ocp.CheckpointManager(tmp_path / "again") as manager:
        assert manager.latest_step() == 3
        for step in (2, 3):
            shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, wanted)
            found = manager.restore(step, args=ocp.args.StandardRestore(shapes))
            assert_same(found, later(wanted, step))


def test_our_steps_hold_the_arrays_of_jax(package_node, folder):
    wanted = jax.tree.map(np.asarray, state())
    with forebay.Checkpoints(f"forebay://{folder}/run", node=package_node) as ckpt:
        ckpt.save(7, wanted).durable().result(timeout=60)
        found = ckpt.load(7)
    assert_same(found, wanted)
    assert_same(jax.tree.map(jnp.asarray, found), state())
