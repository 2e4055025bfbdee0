"""Choosing a loader and its settings: configuration, factory, measurements, `tune`."""

from penstock.loaders.machine import Machine
from penstock.tuning.config import DataLoaderConfig
from penstock.tuning.factory import DataLoaderFactory, OptimalDataLoaderFactory
from penstock.tuning.monitor import DataLoaderPerformanceMonitor
from penstock.tuning.tune import tune

__all__ = [
    "DataLoaderConfig",
    "DataLoaderFactory",
    "DataLoaderPerformanceMonitor",
    "Machine",
    "OptimalDataLoaderFactory",
    "tune",
]
