"""torch with the Python package: tensors over views, workers of a DataLoader, checkpoints by fsspec."""

import uuid
import warnings

import pytest

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="torch has an environment of its own: requirements/torch.txt")
forebay = pytest.importorskip("forebay", reason="the wheel is installed by `cargo xtask test --all`")

from forebay_node import Node  # noqa: E402


@pytest.fixture(scope="module")
def package_node(tmp_path_factory):
    root = tmp_path_factory.mktemp("daemon")
    with Node(root, ram="256MiB", args=["--socket", str(root / "n.sock")]) as process:
        with forebay.connect(str(root / "n.sock")) as node:
            yield node
        assert process.process.poll() is None


@pytest.fixture
def package_bucket(package_node):
    name = f"b-{uuid.uuid4().hex[:12]}"
    package_node.create_bucket(name)
    return name


def test_a_view_is_a_tensor_without_copy_or_warning(package_node, package_bucket):
    tensor = torch.arange(100_000, dtype=torch.bfloat16)
    package_node.put(f"{package_bucket}/t", tensor)
    view = package_node.get(f"{package_bucket}/t")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = view.torch(torch.bfloat16)
    assert torch.equal(loaded, tensor)
    with pytest.raises(BufferError):
        view.release()
    del loaded
    view.release()


def test_a_tensor_that_torch_made_by_itself_outlives_the_release(package_node, package_bucket):
    """torch gives the buffer back at once and keeps the object: the memory must stay with the object."""
    package_node.put(f"{package_bucket}/t", torch.arange(1 << 20, dtype=torch.int64))
    with package_node.get(f"{package_bucket}/t") as view:
        loaded = torch.frombuffer(view, dtype=torch.int64)
    assert view.released
    for index in range(40):
        package_node.put(f"{package_bucket}/other-{index}", bytes([index]) * (8 << 20))
    del view
    assert torch.equal(loaded, torch.arange(1 << 20))


def test_a_tensor_over_a_buffer_outlives_its_put(package_node, package_bucket):
    buffer = package_node.alloc(8 * 1000)
    tensor = torch.frombuffer(buffer, dtype=torch.int64)
    tensor[:] = torch.arange(1000)
    package_node.put(f"{package_bucket}/t", buffer)
    tensor[:] = 7
    assert torch.equal(package_node.get(f"{package_bucket}/t").torch(torch.int64), torch.arange(1000))
    held = package_node.alloc(8)
    ours = held.torch(torch.int64)
    with pytest.raises(BufferError):
        package_node.put(f"{package_bucket}/t", held)
    del ours
    package_node.put(f"{package_bucket}/t", held)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_a_tensor_is_filled_in_place(package_node, package_bucket, dtype):
    tensor = (torch.rand(300, 70) * 100).to(dtype)
    package_node.put(f"{package_bucket}/t", tensor)
    target = torch.empty_like(tensor)
    assert package_node.read_into(f"{package_bucket}/t", target) == tensor.nbytes
    assert torch.equal(target, tensor)
    with pytest.raises(ValueError, match="contiguous"):
        package_node.read_into(f"{package_bucket}/t", target.T)


class Samples(torch.utils.data.Dataset):
    def __init__(self, node, bucket, count):
        self.node, self.bucket, self.count = node, bucket, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with self.node.get(f"{self.bucket}/{index}") as view:
            return view.torch(torch.int64).clone()

    def __getitems__(self, indices):
        views = self.node.get_batch([f"{self.bucket}/{index}" for index in indices])
        return [view.torch(torch.int64).clone() for view in views]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_a_data_loader_read(package_node, package_bucket, method):
    for index in range(64):
        package_node.put(f"{package_bucket}/{index}", torch.full((1000,), index))
    loader = torch.utils.data.DataLoader(
        Samples(package_node, package_bucket, 64), batch_size=8, num_workers=2, multiprocessing_context=method
    )
    for _ in range(2):
        batches = torch.cat(list(loader))
        assert torch.equal(batches, torch.arange(64).repeat_interleave(1000).reshape(64, 1000))


def test_checkpoints_are_saved_and_loaded_by_fsspec(package_node, package_bucket):
    from forebay.fsspec import ForebayFileSystem

    fs = ForebayFileSystem(node=package_node, skip_instance_cache=True)
    state = {"weight": torch.arange(3_000_000, dtype=torch.float32), "step": 7}
    with fs.open(f"{package_bucket}/step-7.pt", "wb") as file:
        torch.save(state, file)
    with fs.open(f"{package_bucket}/step-7.pt") as file:
        loaded = torch.load(file)
    assert loaded["step"] == 7
    assert torch.equal(loaded["weight"], state["weight"])


def test_safetensors_from_a_view(package_node, package_bucket):
    import safetensors.torch

    tensors = {"weight": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)}
    package_node.put(f"{package_bucket}/m.safetensors", safetensors.torch.save(tensors))
    loaded = safetensors.torch.load(bytes(package_node.get(f"{package_bucket}/m.safetensors")))
    assert torch.equal(loaded["weight"], tensors["weight"])
