"""Addresses on object storage, and how they are shown: without what gives access."""

from __future__ import annotations

import re

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss", "adl", "azure", "http", "https")

_USER = re.compile(r"(\w+:/{1,2})[^/\s'\"]*@")
_QUERY = re.compile(r"(\w+:/[^\s'\"?#]*)[?#][^\s'\"]*")


def is_url(where: str) -> bool:
    """Whether ``where`` is an address on object storage.

    >>> is_url("s3://bucket/data.zarr"), is_url("/data.zarr")
    (True, False)
    """
    scheme, found, _ = where.partition("://")
    return bool(found) and scheme.lower() in SCHEMES


def redacted(text: str) -> str:
    """The text without user names, passwords, query strings and fragments of URLs in it.

    A message, a log and a `repr` may be read by others; a signed URL or a password would let
    them in.

    >>> redacted("cannot open s3://key:secret@bucket/x.zarr?token=abc: refused")
    'cannot open s3://***@bucket/x.zarr?*** refused'
    """
    return _QUERY.sub(r"\1?***", _USER.sub(r"\1***@", text))
