"""Checks of the manifests in deploy/kubernetes against their schemas: `make manifests-check`.

Kubernetes' own resources are checked by the package kubernetes-validate, strictly, for its oldest and newest version
of Kubernetes. The schemas of custom resources are in kubernetes_schemas.yaml. That a check has teeth is checked, too:
the same manifest with one more field must be refused. Runs in an environment of that package, without network.
"""

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate.utils
import yaml

MANIFEST_FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VALUES_FILES = {"prometheus-adapter.yaml"}  # of a Helm chart, not manifests
POD_SPEC = "POD_SPEC"
RESOURCE_FIELDS = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {
    "type": "object", "properties": {"name": {"type": "string"}, "namespace": {"type": "string"},
                                     "labels": {"type": "object"}, "annotations": {"type": "object"}}}}
Json = dict[str, Any]


def forbid_extra_fields(schema: Any) -> Any:
    """Return the schema with objects that have no other fields than their properties."""
    if isinstance(schema, list):
        return [forbid_extra_fields(item) for item in schema]
    if not isinstance(schema, dict):
        return {} if schema == POD_SPEC else schema
    closed = {name: {field: forbid_extra_fields(value) for field, value in part.items()} if name == "properties"
              else forbid_extra_fields(part) for name, part in schema.items()}
    return {"additionalProperties": False, **closed} if "properties" in closed else closed


def find_pod_specs(schema: Any, value: Any) -> Iterator[Json]:
    """Yield the parts of a value for which its schema says POD_SPEC."""
    if schema == POD_SPEC:
        yield value
    elif isinstance(schema, dict) and isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name in value:
                yield from find_pod_specs(part, value[name])
    elif isinstance(schema, dict) and isinstance(value, list):
        for item in value:
            yield from find_pod_specs(schema.get("items"), item)


def validate_core(manifest: Json) -> None:
    versions = kubernetes_validate.utils.all_versions()
    for version in (versions[0], versions[-1]):
        kubernetes_validate.validate(manifest, version, strict=True)


def validate(manifest: Json, schemas: dict[str, Json]) -> None:
    """Raises ValidationError, or SchemaNotFoundError."""
    schema = schemas.get(f"{manifest['apiVersion']}/{manifest['kind']}")
    if schema is None:
        validate_core(manifest)
        return
    closed = forbid_extra_fields({**schema, "type": "object", "properties": RESOURCE_FIELDS | schema["properties"]})
    jsonschema.validate(manifest, closed)
    for spec in find_pod_specs(schema, manifest):
        validate_core({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec})


def is_refused(manifest: Json, schemas: dict[str, Json]) -> bool:
    try:
        validate(manifest, schemas)
    except jsonschema.ValidationError:
        return True
    return False


def check_file(path: Path, schemas: dict[str, Json]) -> Iterator[str]:
    """Yield what is wrong with the manifests of a file."""
    for manifest in yaml.safe_load_all(path.read_text()):
        name = f"{path.relative_to(MANIFEST_FOLDER)}: {manifest['kind']}"
        try:
            validate(manifest, schemas)
        except (jsonschema.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
            yield f"{name}: {'.'.join(map(str, getattr(error, 'path', ())))} {error.message}"
        mutated = copy.deepcopy(manifest)
        (mutated.get("spec") or mutated)["notAField"] = 1
        if not is_refused(mutated, schemas):
            yield f"{name}: its schema accepts a field that does not exist"


def main() -> int:
    schemas = yaml.safe_load((Path(__file__).parent / "kubernetes_schemas.yaml").read_text())
    paths = [path for path in sorted(MANIFEST_FOLDER.rglob("*.yaml")) if path.name not in VALUES_FILES]
    faults = [fault for path in paths for fault in check_file(path, schemas)]
    print("\n".join(faults) or f"{len(paths)} files with manifests match their schemas")
    return 1 if faults or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
