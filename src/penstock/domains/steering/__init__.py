"""Steering datasets for JASPER training: pairs of question and source embeddings."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
