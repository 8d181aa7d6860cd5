"""What another user of a node may try against a search's Ray cluster: `attack.py WAY ADDRESS`; says how it ended."""

from __future__ import annotations

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
