"""Browser access: only for configured origins."""

import urllib.error
import urllib.request

CONFIG = """
[cors]
origins = ["https://lab.example.org"]
"""


def preflight(node, origin: str):
    request = urllib.request.Request(f"{node.s3_url}/bucket-a/key", method="OPTIONS")
    request.add_header("Origin", origin)
    request.add_header("Access-Control-Request-Method", "PUT")
    request.add_header("Access-Control-Request-Headers", "authorization,x-amz-date,x-amz-content-sha256")
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.headers


def test_known_origin_gets_its_preflight(own_node):
    node = own_node(config=CONFIG).start()
    status, headers = preflight(node, "https://lab.example.org")
    assert status in (200, 204)
    assert headers["Access-Control-Allow-Origin"] == "https://lab.example.org"
    assert "PUT" in headers["Access-Control-Allow-Methods"]


def test_unknown_origin_gets_nothing(own_node):
    node = own_node(config=CONFIG).start()
    _, headers = preflight(node, "https://evil.example.org")
    assert headers.get("Access-Control-Allow-Origin") is None


def test_off_by_default(node):
    status, headers = preflight(node, "https://lab.example.org")
    assert headers.get("Access-Control-Allow-Origin") is None
    assert status >= 400
