"""Who recorded how much of what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.arguments import array_of
from penstock.errors import PlanError
from penstock.order import Indices

Counts: TypeAlias = npt.NDArray[np.int64]
Parts: TypeAlias = npt.NDArray[np.int64]  # the part that each author is in


@dataclass(frozen=True)
class Census:
    """How many segments of each class every author has; parts are made of authors."""

    classes: npt.NDArray[Any]
    authors: npt.NDArray[Any]
    class_of: Indices  # of each sample
    author_of: Indices
    counts: Counts  # (authors, classes)

    @classmethod
    def of(cls, labels: npt.ArrayLike, authors: npt.ArrayLike) -> Census:
        """The census of samples with these labels and authors."""
        labels, authors = array_of("labels", labels), array_of("authors", authors)
        if labels.ndim != 1 or labels.shape != authors.shape or not len(labels):
            raise PlanError(
                f"needs a label and an author for each of at least 1 sample, got shapes "
                f"{labels.shape} and {authors.shape}"
            )
        classes, class_of = np.unique(labels, return_inverse=True)
        names, author_of = np.unique(authors, return_inverse=True)
        counts = np.zeros((len(names), len(classes)), np.int64)
        np.add.at(counts, (author_of, class_of), 1)
        return cls(classes, names, class_of, author_of, counts)

    def in_parts(self, parts: Parts, count: int) -> Counts:
        """Segments of each class in each of ``count`` parts."""
        counts: Counts = (np.arange(count)[:, None] == parts).astype(np.int64) @ self.counts
        return counts

    def parts_of(self, samples: list[Indices]) -> Parts:
        """The part of each author, out of the samples of each part."""
        parts = np.zeros(len(self.authors), np.int64)
        for part, members in enumerate(samples):
            parts[self.author_of[members]] = part
        return parts

    def require_authors(self, least: int, why: str) -> None:
        """Refuse classes with fewer authors; every one of them is named."""
        found = (self.counts > 0).sum(axis=0)
        few = [f"{self.classes[i]!s} ({found[i]})" for i in np.flatnonzero(found < least)]
        if few:
            raise PlanError(
                f"a split by author needs at least {least} authors of every class, {why}; "
                f"class {', '.join(few)} has fewer: add recordings of others, or leave it out"
            )

    def require_segments(self, least: int, why: str) -> None:
        """Refuse classes with fewer segments."""
        found = self.counts.sum(axis=0)
        few = [f"{self.classes[i]!s} ({found[i]})" for i in np.flatnonzero(found < least)]
        if few:
            raise PlanError(
                f"{why}, class {', '.join(few)} has fewer: ask for fewer, or leave it out"
            )
