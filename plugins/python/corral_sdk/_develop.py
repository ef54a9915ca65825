"""The handler of `corral watch` with a developing server: runs the project's modules, which the deployment's
configuration contains, so that the component does not change with them. Imported in a component only."""

import base64
import json
import linecache
import sys
import zlib
from importlib import import_module
from importlib.util import spec_from_loader
from typing import Any

import wit_world.exports
from wit_world.imports import environment

from ._component import handle
from .model import SOURCE

_MODULE = "app"


class _Modules:
    """Finds and loads modules: of each, its file and its text. A package without `__init__.py` has no text."""

    def __init__(self, modules: dict[str, list[Any]]):
        self.modules = modules

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.modules:
            return None
        file, text = self.modules[name]
        is_package = text is None or file.endswith("__init__.py")
        return spec_from_loader(name, self, origin=file, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        file, text = self.modules[module.__name__]
        if text is None:
            return
        module.__file__ = file
        # For tracebacks: a component has no files.
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(text, file, "exec"), module.__dict__)


def _application() -> Any:
    """The project's module, loaded at its first use."""
    if _MODULE not in sys.modules:
        parts = [(name, value) for name, value in environment.get_environment() if name.startswith(SOURCE)]
        packed = "".join(value for _, value in sorted(parts))
        sys.meta_path.insert(0, _Modules(json.loads(zlib.decompress(base64.b64decode(packed)))))
    return import_module(_MODULE)


class Handler(wit_world.exports.Handler):
    async def handle(self, request: Any) -> Any:
        try:
            handler = _application().Handler()
        except Exception as error:
            failure = error

            async def fail(_: Any) -> Any:
                raise failure

            return await handle(fail, request)
        return await handler.handle(request)
