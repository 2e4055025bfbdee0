"""Recordings of the simulated fly visual system: columns over time, neurons, chunks, rollouts."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
