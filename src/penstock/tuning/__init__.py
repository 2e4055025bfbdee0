"""Choosing a loader and its settings: configuration, factory, measurements, `tune`."""

from penstock.tuning.factory import DataLoaderConfig as DataLoaderConfig
from penstock.tuning.factory import DataLoaderFactory as DataLoaderFactory
from penstock.tuning.factory import OptimalDataLoaderFactory as OptimalDataLoaderFactory
from penstock.tuning.machine import Machine as Machine
from penstock.tuning.monitor import DataLoaderPerformanceMonitor as DataLoaderPerformanceMonitor
from penstock.tuning.trials import tune as tune
