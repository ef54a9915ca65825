#!/usr/bin/env python3
"""Licenses and bill of materials of all packages in `corral` and the first-party plugins.

    packaging/licenses.py             checks that deny.toml allows each license, and that each package has a text
    packaging/licenses.py DIR         writes DIR/THIRD-PARTY-LICENSES.txt and DIR/sbom.cdx.json (CycloneDX), too

Needs Python 3.11 or later, and cargo, which downloads the sources of packages that are missing. Dependencies for other
systems than this one are left out.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Each workspace with the packages that are shipped from it, and their target; nothing for this machine's.
WORKSPACES = {
    "Cargo.toml": (["corral-cli"], None),
    "plugins/Cargo.toml": (None, "wasm32-wasip1"),
}
LICENSE_FILE = re.compile(r"^(LICEN[CS]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)
# Directories with texts of files that are not compiled.
OTHER_FILES = {"tests", "test", "testdata", "benches", "examples", "fuzz", "docs", "node_modules"}
# The oldest form of a license expression.
SLASH = re.compile(r"\s*/\s*")


def output(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def shipped_packages():
    """All packages that are compiled into the shipped files, by name and version."""
    packages = {}
    host = re.search(r"^host: (.+)$", output(["rustc", "-vV"]), re.MULTILINE)[1]
    for manifest, (roots, target) in WORKSPACES.items():
        command = ["cargo", "metadata", "--locked", "--format-version=1", "--manifest-path", ROOT / manifest]
        metadata = json.loads(output([*command, "--filter-platform", target or host]))
        by_id = {package["id"]: package for package in metadata["packages"]}
        nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
        members = metadata["workspace_members"]
        pending = [id for id in members if roots is None or by_id[id]["name"] in roots]
        seen = set()
        while pending:
            id = pending.pop()
            if id in seen:
                continue
            seen.add(id)
            package = by_id[id]
            packages[package["name"], package["version"]] = package
            for dependency in nodes[id]["deps"]:
                # Build dependencies count: some compile code in. Development dependencies do not.
                if any(kind["kind"] != "dev" for kind in dependency["dep_kinds"]):
                    pending.append(dependency["pkg"])
    return [packages[key] for key in sorted(packages)]


def is_allowed(expression, allowed):
    """Whether an SPDX expression is satisfied by allowed licenses."""
    expression = SLASH.sub(" OR ", expression)
    if expression in allowed:
        return True
    tokens = re.findall(r"\(|\)|\bAND\b|\bOR\b|[^\s()]+(?:\s+WITH\s+[^\s()]+)?", expression)
    words = {"(": "(", ")": ")", "AND": "and", "OR": "or"}
    # Only these words and True and False are evaluated.
    return eval(" ".join(words.get(token, str(token in allowed)) for token in tokens), {})


def license_texts(package):
    """The license texts in a package's sources, vendored libraries included."""
    if package["source"] == "npm":
        return {"LICENSE": package["text"]}
    source = Path(package["manifest_path"]).parent
    texts = {}
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if OTHER_FILES & set(inside.parts[:-1]) or not LICENSE_FILE.match(path.name) or not path.is_file():
            continue
        if path.suffix in ("", ".md", ".txt", ".rst") or "license" in path.name.lower():
            text = path.read_text(errors="replace").strip()
            if text and path.suffix not in (".rs", ".html", ".json", ".toml", ".py", ".c", ".h", ".cpp"):
                texts[str(inside)] = text
    return texts


def console_packages():
    """The packages in the bundle of the web console, in the form of cargo's."""
    bundled = json.loads((ROOT / "host/console/dist/licenses.json").read_text())
    form = {"source": "npm", "repository": None, "authors": []}
    return [{**form, **package} for package in bundled]


def is_own(package):
    return package["source"] is None


def component(package):
    """A package in the form of CycloneDX."""
    name, version = package["name"], package["version"]
    purl = f"pkg:{'npm' if package['source'] == 'npm' else 'cargo'}/{name}@{version}"
    entry = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if package["license"]:
        entry["licenses"] = [{"expression": SLASH.sub(" OR ", package["license"])}]
    if package["repository"]:
        entry["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return entry


def main():
    allowed = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    own_license = (ROOT / "LICENSE").read_text().strip()
    packages = shipped_packages() + console_packages()
    third_party = [package for package in packages if not is_own(package)]
    problems, sections, users = [], {}, {}
    for package in third_party:
        label = f"{package['name']} {package['version']}"
        license = package["license"]
        if not license or not is_allowed(license, allowed):
            problems.append(f"{label}: deny.toml does not allow its license, {license}")
            continue
        texts = license_texts(package)
        if not texts and "Apache-2.0" in license:
            texts = {"LICENSE": own_license}
        elif not texts:
            # It states its license by name only, which is all that can be passed on.
            texts = {"": f"{license}, by {', '.join(package['authors']) or 'the authors of ' + package['name']}"}
        for text in texts.values():
            key = " ".join(text.split())
            sections.setdefault(key, text)
            users.setdefault(key, []).append(f"{label} ({license})")
    if problems:
        sys.exit("packaging/licenses.py: " + "\n".join(problems))
    print(f"packaging/licenses.py: {len(third_party)} packages, {len(sections)} license texts", file=sys.stderr)
    if len(sys.argv) < 2:
        return
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with open(out / "THIRD-PARTY-LICENSES.txt", "w") as file:
        for key, text in sections.items():
            used_by = sorted(set(users[key]))
            file.write("=" * 80 + "\n" + "\n".join(used_by) + "\n" + "-" * 80 + f"\n{text}\n\n")
    version = next(package["version"] for package in packages if package["name"] == "corral-cli")
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "corral", "name": "corral", "version": version}},
        "components": [component(package) for package in third_party],
    }
    (out / "sbom.cdx.json").write_text(json.dumps(bill, indent=1) + "\n")


main()
