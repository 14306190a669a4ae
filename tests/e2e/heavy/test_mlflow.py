"""MLflow artifacts: by its own S3 client, and by presigned multipart through its server."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from forebay_node import wait_for
from payload import MIB, payload, same

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(400)]
mlflow = pytest.importorskip("mlflow", reason="MLflow has an environment of its own: requirements/mlflow.txt")


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture
def server(aws_environment, monkeypatch, bucket, tmp_path):
    """An MLflow server that stores artifacts through the node and hands out presigned URLs for large ones."""
    settings = {
        "MLFLOW_S3_ENDPOINT_URL": aws_environment.s3_url,
        "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "true",
        "MLFLOW_MULTIPART_UPLOAD_MINIMUM_FILE_SIZE": str(6 * MIB),
        "MLFLOW_MULTIPART_UPLOAD_CHUNK_SIZE": str(5 * MIB),
    }
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/db", "--artifacts-destination", f"s3://{bucket}/mlflow"]
    with open(tmp_path / "server.log", "wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **settings}, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"

    def answers():
        try:
            return urllib.request.urlopen(f"{url}/health", timeout=2).status == 200
        except OSError:
            return False

    try:
        wait_for("the MLflow server", answers, 180, pause=0.2)
        for name, value in settings.items():
            if name != "MLFLOW_S3_ENDPOINT_URL":  # the client must go through the server
                monkeypatch.setenv(name, value)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_large_artifact_goes_by_presigned_multipart(server, s3, bucket, tmp_path):
    body = payload(13 * MIB, 1)
    (tmp_path / "large.bin").write_bytes(body)
    mlflow.set_tracking_uri(server)
    with mlflow.start_run() as run:
        mlflow.log_artifact(str(tmp_path / "large.bin"))
    got = mlflow.artifacts.download_artifacts(
        run_id=run.info.run_id, artifact_path="large.bin", dst_path=str(tmp_path / "out")
    )
    with open(got, "rb") as file:
        same(file.read(), body)
    stored = s3.list_objects_v2(Bucket=bucket)["Contents"]
    assert [(one["Size"], one["ETag"].strip('"').endswith("-3")) for one in stored] == [(len(body), True)]


def test_artifacts_go_straight_to_s3(aws_environment, monkeypatch, bucket, tmp_path):
    monkeypatch.setenv("MLFLOW_S3_ENDPOINT_URL", aws_environment.s3_url)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/direct")
    experiment = mlflow.create_experiment("direct", artifact_location=f"s3://{bucket}/direct")
    with mlflow.start_run(experiment_id=experiment) as run:
        mlflow.log_text("hello", "notes/a.txt")
    assert mlflow.artifacts.load_text(f"{run.info.artifact_uri}/notes/a.txt") == "hello"
