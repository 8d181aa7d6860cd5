"""KubeRay's schema of a RayCluster, cut down to what our kuberay.yaml says: a megabyte becomes a few kilobytes.

    python -m tests.sites.kuberay_schema VERSION < ray.io_rayclusters.yaml > tests/sites/kuberay.json

The file comes from helm-chart/kuberay-operator/crds of KubeRay's repository. Of every object that we describe all
fields are kept by name, and those that we do not use are forbidden: who uses one makes this file anew.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import yaml

from recur_tune.common.shipped import KUBERAY

_KEPT = ("type", "required", "enum", "pattern", "minimum", "maximum", "minItems")


def cut(schema: dict[str, Any], values: list[Any]) -> dict[str, Any]:
    """The part of a schema that these values are checked by."""
    kept = {key: schema[key] for key in _KEPT if key in schema}
    if schema.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
    if "properties" in schema:
        inside = {
            name: [value[name] for value in values if isinstance(value, dict) and name in value]
            for name in schema["properties"]
        }
        kept["properties"] = {
            name: cut(schema["properties"][name], used) if used else False for name, used in sorted(inside.items())
        }
        kept["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        kept["additionalProperties"] = cut(schema["additionalProperties"], [])
    if "items" in schema:
        kept["items"] = cut(schema["items"], [item for value in values for item in value])
    return kept


def main() -> None:
    cluster = yaml.safe_load(KUBERAY.read_text())
    definition = yaml.safe_load(sys.stdin)
    [version] = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
    schema = version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {"type": "object", "properties": {"name": {"type": "string"}}}  # Kubernetes' own
    said = {"$comment": f"KubeRay {sys.argv[1]}, Apache-2.0", **cut(schema, [cluster])}
    print(json.dumps(said, indent=1))


if __name__ == "__main__":
    main()
