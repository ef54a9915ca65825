#!/usr/bin/env python3
"""Writes a wheel of the Python packages in plugins/python: packaging/wheel.py OUT. Prints its name.

It needs neither setuptools nor a network, and the same files give the same wheel. Needs Python 3.11 or later.
"""

import base64
import hashlib
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "plugins/python"


def main(out):
    settings = tomllib.loads((SOURCE / "pyproject.toml").read_text())
    project = settings["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    files = {
        str(file.relative_to(SOURCE)): file.read_bytes()
        for package in settings["tool"]["setuptools"]["packages"]
        for file in sorted((SOURCE / package).iterdir())
        if file.suffix == ".py" or file.name == "py.typed"
    }
    about = {
        "Metadata-Version": "2.4",
        "Name": project["name"],
        "Version": project["version"],
        "Summary": project["description"],
        "License-Expression": project["license"],
        "License-File": "LICENSE",
        "Requires-Python": project["requires-python"],
    }
    wheel = {"Wheel-Version": "1.0", "Generator": "corral", "Root-Is-Purelib": "true", "Tag": "py3-none-any"}
    for name, fields in [("METADATA", about), ("WHEEL", wheel)]:
        text = "".join(f"{field}: {value}\n" for field, value in fields.items())
        files[f"{stem}.dist-info/{name}"] = text.encode()
    files[f"{stem}.dist-info/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{name},sha256={digest(data)},{len(data)}\n" for name, data in files.items()]
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    name = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(Path(out) / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            # With the earliest date that the format has.
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    print(name)


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    main(*sys.argv[1:])
