"""Collects the modules of a project in the working directory, for `corral watch` and a developing server.

Prints JSON: `source`, the modules, compressed; `imports`, what they import from elsewhere; `key`, which changes when one
of those changes. A syntax error ends it with status 3.
"""

import ast
import base64
import hashlib
import importlib.util
import json
import sys
import zlib
from pathlib import Path

SDK = "corral_sdk"
MAX_FILES = 1000
IGNORED = {SDK, "__pycache__", "node_modules", "tests"}
# Imported always, so that a project may begin to import them.
COMMON = """abc asyncio base64 bisect collections collections.abc contextlib copy csv dataclasses datetime decimal difflib
enum fractions functools hashlib heapq html inspect io itertools json logging math operator pprint random re secrets
statistics string struct textwrap time types typing unicodedata urllib.parse uuid zlib""".split()


def sources(folder):
    """The Python files below a folder, except tests and virtual environments."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in IGNORED:
            continue
        if path.is_dir():
            if not (path / "pyvenv.cfg").exists():
                yield from sources(path)
        elif path.suffix == ".py" and not path.name.startswith("test_") and path.name != "conftest.py":
            yield path


def imports(tree):
    """The modules that a module may import. A name that it imports from a module may be one, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*")


def installed(name):
    """The file of a package outside the standard library, and when it changed."""
    if name in sys.stdlib_module_names:
        return None
    try:
        origin = importlib.util.find_spec(name).origin
        return [name, origin, Path(origin).stat().st_mtime_ns]
    except (AttributeError, ImportError, OSError, TypeError, ValueError):
        return [name]


def main():
    root = Path.cwd()
    sys.path.insert(0, str(root))
    modules, imported = {}, set(COMMON)
    for count, path in enumerate(sources(root)):
        if count == MAX_FILES:
            sys.exit(f"there are more than {MAX_FILES} Python files")
        file = path.relative_to(root)
        parts = list(file.with_suffix("").parts)
        for depth in range(1, len(parts)):
            # A package without `__init__.py`.
            modules.setdefault(".".join(parts[:depth]), [str(Path(*parts[:depth])), None])
        if parts[-1] == "__init__":
            parts.pop()
        text = path.read_bytes().decode(errors="replace")
        try:
            imported.update(imports(ast.parse(text, str(file))))
        except SyntaxError as error:
            print(f"{file}:{error.lineno}: {error.msg}", file=sys.stderr)
            sys.exit(3)
        if parts:
            modules[".".join(parts)] = [str(file), text]
    own = {name.split(".")[0] for name in modules} | {SDK}
    outside = sorted(name for name in imported if name.split(".")[0] not in own)
    spec = importlib.util.find_spec(SDK)
    folder = Path(spec.origin).parent if spec and spec.origin else None
    sdk = [[str(path), path.read_text()] for path in sorted(folder.glob("*.py"))] if folder else []
    packages = sorted({name.split(".")[0] for name in outside})
    key = json.dumps([outside, sdk, [installed(name) for name in packages]])
    packed = base64.b64encode(zlib.compress(json.dumps(modules).encode(), 9)).decode()
    print(json.dumps({
        "source": packed,
        "imports": outside,
        "key": hashlib.sha256(key.encode()).hexdigest(),
    }))


main()
