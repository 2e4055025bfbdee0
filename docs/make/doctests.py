"""An extension of griffe that shows examples in docstrings as code, not as quotations."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^( *)>>> .*?(?=\n[ ]*\n|\Z)", re.M | re.S)


class Doctests(Extension):
    """Puts a fence around each example."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of an object, once it is collected."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1```pycon\n\g<0>\n\1```", obj.docstring.value)
