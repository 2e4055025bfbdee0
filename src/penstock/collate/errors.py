"""The one error of collation."""

from __future__ import annotations

from penstock.errors import BatchError


class CollateError(BatchError, ValueError):
    """Samples that cannot form a batch; the message names the sample and the field."""
