"""The bill of materials of an installation: CycloneDX 1.6, from the locked requirements.

    python ops/release/sbom.py > moldau.cdx.json

The same lock file gives the same bytes. Licences are those of the packages that are installed where
this runs; a package that is not installed there is listed without one. Needs the standard library
only, so that the build of the image can run it.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
LOCK = HERE / "requirements.lock"
PROJECT = HERE.parents[1] / "pyproject.toml"
ITSELF = "moldau"
_PIN = re.compile(r"([a-z0-9.-]+)==([^ ;]+)(?: ; (.*?))? \\")
_HASH = re.compile(r"    --hash=sha256:([0-9a-f]{64})")
_VIA = re.compile(r"    #(?: via)?(?: {1,3}([a-z0-9.-]+).*)?")


class Pin(NamedTuple):
    """A locked package: where it is needed, the digests of its files, and what asks for it."""

    name: str
    version: str
    marker: str | None
    digests: list[str]
    parents: list[str]

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def read_lock(text: str) -> list[Pin]:
    """Raises ValueError for a line that is none of a lock file with digests."""
    pins: list[Pin] = []
    for line in text.splitlines():
        if found := _PIN.fullmatch(line):
            pins.append(Pin(found[1], found[2], found[3], [], []))
        elif found := _HASH.match(line):
            pins[-1].digests.append(found[1])
        elif found := _VIA.fullmatch(line):
            if found[1] is not None:
                pins[-1].parents.append(found[1])
        else:
            raise ValueError(f"not a line of locked requirements: {line!r}")
    return pins


def bill(lock: str, version: str) -> dict[str, Any]:
    """The document for Moldau in `version` with the packages of a lock file."""
    pins = read_lock(lock)
    root = f"pkg:pypi/{ITSELF}@{version}"
    references = {pin.name: pin.purl for pin in pins} | {ITSELF: root}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'{root} {lock}')}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": ITSELF,
                "version": version,
                "purl": root,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [_component(pin) for pin in pins],
        "dependencies": [
            {
                "ref": reference,
                "dependsOn": sorted(pin.purl for pin in pins if name in pin.parents),
            }
            for name, reference in sorted(references.items())
        ],
    }


def _component(pin: Pin) -> dict[str, Any]:
    described: dict[str, Any] = {
        "type": "library",
        "bom-ref": pin.purl,
        "name": pin.name,
        "version": pin.version,
        "purl": pin.purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in pin.digests],
    }
    if pin.marker is not None:
        described["properties"] = [{"name": "moldau:only-if", "value": pin.marker}]
    if (licence := _licence(pin)) is not None:
        described["licenses"] = [{"license": {"name": licence}}]
    return described


def _licence(pin: Pin) -> str | None:
    """What the installed package says: an expression, a classifier, or a short text."""
    try:
        installed = importlib.metadata.distribution(pin.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if installed.version != pin.version:
        return None
    metadata = installed.metadata
    named = [
        classifier.rpartition(" :: ")[2]
        for classifier in metadata.get_all("Classifier", [])
        if classifier.startswith("License :: ") and classifier != "License :: OSI Approved"
    ]
    text = next(iter(metadata.get_all("License", [])), "").strip()
    short = text if text and "\n" not in text else None
    expression = next(iter(metadata.get_all("License-Expression", [])), None)
    return expression or short or (", ".join(named) or None)


def own_version() -> str:
    """The version of the tree that this stands in, else of the installed package."""
    if PROJECT.exists():
        version: str = tomllib.loads(PROJECT.read_text("utf-8"))["project"]["version"]
        return version
    return importlib.metadata.version(ITSELF)


if __name__ == "__main__":
    json.dump(bill(LOCK.read_text("utf-8"), own_version()), sys.stdout, indent=2)
    print()
