"""W&B offline: artifacts by reference to S3."""

import pytest

pytestmark = pytest.mark.heavy
wandb = pytest.importorskip("wandb", reason="wandb has an environment of its own: requirements/wandb.txt")


def test_reference_artifact_names_every_object_with_its_etag(aws_environment, monkeypatch, s3, bucket, tmp_path):
    monkeypatch.setenv("AWS_S3_ENDPOINT_URL", aws_environment.s3_url)
    monkeypatch.setenv("WANDB_SILENT", "true")
    etags = {}
    for number in range(20):
        answer = s3.put_object(Bucket=bucket, Key=f"set/{number:02}", Body=bytes([number]) * 1000)
        etags[f"{number:02}"] = answer["ETag"].strip('"')
    with wandb.init(project="e2e", mode="offline", dir=str(tmp_path)) as run:
        artifact = wandb.Artifact("set", "dataset")
        artifact.add_reference(f"s3://{bucket}/set/", max_objects=100)
        run.log_artifact(artifact)
    entries = artifact.manifest.entries
    assert {name: entry.digest for name, entry in entries.items()} == etags
    assert all(entry.size == 1000 for entry in entries.values())
