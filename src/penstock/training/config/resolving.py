"""The composed configuration as a plain dict: every ``${...}`` filled in, no ``???`` left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from penstock.errors import ConfigError
from penstock.extras import optional
from penstock.training.config.composing import Composed
from penstock.training.config.keys import IDLE_SECTIONS
from penstock.training.config.places import Places, shown


def resolve(composed: Composed) -> dict[str, Any]:
    """Each section as plain values; of those without effect, only that they are there."""
    omegaconf = optional("omegaconf", extra="train")
    config, places = composed.config, composed.places
    if not isinstance(config, omegaconf.DictConfig):
        raise ConfigError(f"{shown(places.path)} must have sections with keys: found a list")
    found: dict[str, Any] = {}
    for name in config:
        if name in IDLE_SECTIONS:
            empty = omegaconf.OmegaConf.is_missing(config, name) or config._get_node(name) is None
            found[str(name)] = None if empty or config._get_node(name)._is_none() else {}
        else:
            found[str(name)] = _section(config, name, places)
    if any(layer.line_of(("hydra",)) for layer in places.layers):
        found["hydra"] = {}  # which Hydra took out
    return found


def _section(config: Any, name: Any, places: Places) -> Any:
    omegaconf = optional("omegaconf", extra="train")
    for key in _missing(config, name, str(name)):
        raise ConfigError(
            f"{key} ({places.where(key)}) is ???: give it a value, in a file or as {key}=... on "
            "the command line"
        )
    try:
        value = config[name]
        if isinstance(value, omegaconf.DictConfig | omegaconf.ListConfig):
            return omegaconf.OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        return value
    except omegaconf.errors.OmegaConfBaseException as error:
        key = str(getattr(error, "full_key", None) or name)
        why = str(getattr(error, "msg", None) or error).splitlines()[0]
        raise ConfigError(f"{key} ({places.where(key)}) cannot be filled in: {why}") from error


def _missing(parent: Any, name: Any, key: str) -> Iterator[str]:
    """Keys that are ``???``, without following any ``${...}``."""
    omegaconf = optional("omegaconf", extra="train")
    node = parent._get_node(name)
    if node is not None and node._is_missing():
        yield key
    elif node is None or node._is_none() or node._is_interpolation():
        return
    elif isinstance(node, omegaconf.DictConfig):
        for each in node:
            yield from _missing(node, each, f"{key}.{each}")
    elif isinstance(node, omegaconf.ListConfig):
        for place in range(len(node)):
            yield from _missing(node, place, f"{key}[{place}]")
