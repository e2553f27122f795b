"""Writes the bill of materials of a wheel (CycloneDX 1.6, JSON), which stands inside it as PEP 770 says.

    python3 -m deploy.wheels.sbom WHEEL...     adds it to wheels that were built elsewhere (cibuildwheel)

A wheel holds the package's own files, and C code that Cython and the compiler bring; no library is copied
into it. What an extra installs is not in the wheel: its METADATA lists it, with a range of versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import uuid
import zipfile
from collections.abc import Mapping
from email import message_from_bytes
from pathlib import Path
from typing import Any
from urllib.parse import quote

from deploy.wheels.archives import rewrite_wheel
from deploy.wheels.requirements import PYTHON_REQUIREMENTS, read_pins

#: below `.dist-info`
NAME = "sboms/tensor-transfer.cdx.json"
_LICENSES = {"cython": "Apache-2.0", "ziglang": "MIT"}
#: what of a tool becomes part of the modules
_PARTS = {
    "cython": "the C code that Cython generates contains functions of its own",
    "ziglang": "functions of zig's compiler runtime may be linked in",
}


def write_sbom(wheel: Path, tools: Mapping[str, str], epoch: int) -> bytes:
    """Returns the bill of a wheel. tools: names and versions of distributions that built it."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        fields = message_from_bytes(archive.read(metadata))
        digests = {
            name: hashlib.sha256(archive.read(name)).hexdigest() for name in names if name.endswith(".so")
        }
    parts = [_part(name, version) for name, version in sorted(tools.items()) if name in _PARTS]
    files: list[dict[str, Any]] = [
        {
            "type": "file",
            "bom-ref": f"file:{name}",
            "name": name,
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        for name, digest in sorted(digests.items())
    ]
    version = fields["Version"]
    content = json.dumps([fields["Name"], version, digests], sort_keys=True)
    purl = f"pkg:pypi/{fields['Name']}@{quote(version)}"  # a local version has a plus sign
    bill = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # Of the content: the same modules have the same number in every build.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "lifecycles": [{"phase": "build"}],
            "tools": {
                "components": [
                    {"type": "application", "name": name, "version": tool, "purl": f"pkg:pypi/{name}@{tool}"}
                    for name, tool in sorted(tools.items())
                ]
            },
            "component": {
                "type": "library",
                "bom-ref": purl,
                "name": fields["Name"],
                "version": version,
                "description": fields["Summary"],
                "licenses": [{"expression": fields["License-Expression"]}],
                "purl": purl,
            },
        },
        "components": [*parts, *files],
        "dependencies": [
            {"ref": purl, "dependsOn": [part["bom-ref"] for part in parts]},
            *({"ref": part["bom-ref"], "dependsOn": []} for part in parts),
        ],
    }
    return (json.dumps(bill, indent=1) + "\n").encode()


def _part(name: str, version: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "description": _PARTS[name],
        "licenses": [{"license": {"id": _LICENSES[name]}}],
        "purl": purl,
    }


def main() -> int:
    """Adds the bill to each wheel that the command line names. They were built with the pinned Cython."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0")) or int(time.time())
    for path in map(Path, sys.argv[1:]):
        rewrite_wheel(path, epoch, {NAME: write_sbom(path, read_pins(PYTHON_REQUIREMENTS), epoch)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
