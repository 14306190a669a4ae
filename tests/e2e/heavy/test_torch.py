"""Loaders of PyTorch: s3torchconnector (AWS's CRT client) and Run:ai's model streamer (AWS's C++ client)."""

import pytest

pytestmark = pytest.mark.heavy
torch = pytest.importorskip("torch", reason="torch has an environment of its own: requirements/torch.txt")


@pytest.fixture
def connector(aws_environment):
    import s3torchconnector

    config = s3torchconnector.S3ClientConfig(force_path_style=True)
    return s3torchconnector, {"region": "us-east-1", "endpoint": aws_environment.s3_url, "s3client_config": config}


def test_checkpoint_is_saved_and_loaded(connector, bucket):
    module, options = connector
    checkpoint = module.S3Checkpoint(**options)
    state = {"weight": torch.arange(3_000_000, dtype=torch.float32), "step": 7}
    with checkpoint.writer(f"s3://{bucket}/step-7.pt") as writer:
        torch.save(state, writer)
    with checkpoint.reader(f"s3://{bucket}/step-7.pt") as reader:
        loaded = torch.load(reader)
    assert loaded["step"] == 7 and torch.equal(loaded["weight"], state["weight"])


def test_datasets_read_every_object(connector, s3, bucket):
    module, options = connector
    for number in range(30):
        s3.put_object(Bucket=bucket, Key=f"set/{number:02}", Body=bytes([number]) * 5000)
    by_index = module.S3MapDataset.from_prefix(f"s3://{bucket}/set/", transform=lambda one: one.read(), **options)
    assert len(by_index) == 30 and by_index[11] == bytes([11]) * 5000
    stream = module.S3IterableDataset.from_prefix(f"s3://{bucket}/set/", transform=lambda one: len(one.read()), **options)
    assert sum(stream) == 150_000


def test_model_streamer_loads_safetensors(aws_environment, monkeypatch, s3, bucket, tmp_path):
    import safetensors.torch
    from runai_model_streamer import SafetensorsStreamer

    monkeypatch.setenv("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0")
    monkeypatch.setenv("RUNAI_STREAMER_S3_ENDPOINT", aws_environment.s3_url)
    tensors = {"a": torch.arange(2_000_000).float(), "b": torch.ones(1000)}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    s3.upload_file(str(tmp_path / "model.safetensors"), bucket, "model.safetensors")
    with SafetensorsStreamer() as streamer:
        streamer.stream_file(f"s3://{bucket}/model.safetensors")
        got = {name: tensor.clone() for name, tensor in streamer.get_tensors()}
    assert got.keys() == tensors.keys()
    assert all(torch.equal(got[name], tensors[name]) for name in tensors)
