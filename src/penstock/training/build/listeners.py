"""Callbacks and loggers: who listens while training runs."""

from __future__ import annotations

from typing import Any

from penstock.extras import optional
from penstock.training.build.making import Maker
from penstock.training.build.registries import callbacks
from penstock.training.config import Settings

lightning = optional("lightning.pytorch.callbacks", extra="lightning")

callbacks.add("early_stopping", lightning.EarlyStopping)
callbacks.add("learning_rate_monitor", lightning.LearningRateMonitor)


def make_callbacks(settings: Settings, maker: Maker) -> tuple[Any, ...]:
    """The user's callbacks, in their order."""
    return tuple(
        maker.make(f"callbacks.{name}", _named(name, each), callbacks)
        for name, each in _items(settings.callbacks)
    )


def make_loggers(settings: Settings, maker: Maker) -> tuple[Any, ...]:
    """The user's loggers; none where the run's own will do, one that does nothing for false."""
    if settings.logger is False:
        return (optional("lightning.pytorch.loggers.logger", extra="lightning").DummyLogger(),)
    if settings.logger is True:
        return ()
    return tuple(
        maker.make(f"logger.{name}", _of_lightning(each)) for name, each in _items(settings.logger)
    )


def _items(section: Any) -> list[tuple[Any, Any]]:
    """Sections by name, in a list, or one alone."""
    if not section:
        return []
    if isinstance(section, dict) and ("_target_" in section or "_name_" in section):
        return [(section.get("_name_", 0), section)]
    found = section.items() if isinstance(section, dict) else enumerate(section)
    return [(name, each) for name, each in found if each is not None]


def _named(name: Any, section: Any) -> Any:
    """S4 names a callback by its key."""
    if isinstance(section, dict) and not {"_target_", "_name_"} & section.keys():
        return {"_name_": name, **section}
    return _of_lightning(section)


def _of_lightning(section: Any) -> Any:
    """The same class of the Lightning that trains: it knows no others."""
    target = section.get("_target_", "") if isinstance(section, dict) else ""
    if not str(target).startswith("pytorch_lightning."):
        return section
    return section | {"_target_": target.replace("pytorch_lightning", "lightning.pytorch", 1)}
