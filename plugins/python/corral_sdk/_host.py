"""The host's interfaces: the generated bindings of a component, or a script under test."""

from types import SimpleNamespace
from typing import Any

_script: Any = None
_component: Any = None


def host() -> Any:
    """The modules `models`, `constraints`, `budget`, `inference`, `waiting`, `types` and `environment`."""
    if _script is not None:
        return _script
    if _component is None:
        raise RuntimeError("there is no host: run the plugin in Corral, or in a `corral_sdk.testing.Script`")
    return _component


def install(script: Any) -> Any:
    """Installs a script in place of the bindings, and returns the one before."""
    global _script
    before, _script = _script, script
    return before


def use_bindings() -> None:
    """Uses the bindings that componentize-py makes for the world `corral:inference/handler`."""
    global _component
    from wit_world.imports import (
        budget,
        constraints,
        corral_inference_types,
        environment,
        inference,
        inference_async,
        models,
    )

    _component = SimpleNamespace(
        budget=budget,
        constraints=constraints,
        environment=environment,
        inference=inference,
        models=models,
        types=corral_inference_types,
        waiting=inference_async,
    )
