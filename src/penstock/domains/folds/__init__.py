"""Cross-validation of classifiers, with splits in which no author is in two parts."""

from penstock.lazy import lazy_names

__all__, __getattr__, __dir__ = lazy_names(__name__)
