"""What another user of a node may try against a search's Ray cluster and MLflow server; it says how it ended.

attack.py WAY ADDRESS
"""

from __future__ import annotations

import http.client
import socket
import sys
import urllib.error
import urllib.request

_PATIENCE = 60  # seconds; no answer at all is not a refusal


def main() -> None:
    way, address = sys.argv[1:]
    try:
        _attack(way, address)
    except urllib.error.HTTPError as error:
        print(f"refused with {error.code}")
    except BaseException as error:
        print(f"refused by {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    else:
        print("got in")


def _attack(way: str, address: str) -> None:
    if way == "dashboard":
        urllib.request.urlopen(f"http://{address}/api/v0/nodes", timeout=_PATIENCE).read()
    elif way == "job":
        body = b'{"entrypoint": "touch /tmp/pwned"}'
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(
            urllib.request.Request(f"http://{address}/api/jobs/", body, headers), timeout=_PATIENCE
        ).read()
    elif way in ("mlflow-read", "mlflow-write"):
        connection = http.client.HTTPConnection("localhost", timeout=_PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(address)
        if way == "mlflow-read":
            connection.request("GET", "/api/2.0/mlflow/experiments/get?experiment_id=0")
        else:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/api/2.0/mlflow/experiments/create", b'{"name": "pwned"}', headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(answer.status)
    elif way == "store":
        from ray._raylet import GcsClient

        print(GcsClient(address=address).internal_kv_keys(b"", None, timeout=_PATIENCE))
    elif way == "client":
        import grpc
        from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc

        driver = ray_client_pb2_grpc.RayletDriverStub(grpc.insecure_channel(address))
        request = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING)
        driver.ClusterInfo(request, timeout=_PATIENCE, metadata=[("client_id", "somebody")])
    else:
        raise SystemExit(f"there is no way {way}")


if __name__ == "__main__":
    main()
