"""Run by test_import.py in a fresh interpreter: what each import loads, as JSON.

Standard input is a JSON object of library names by extra. Each extra is left out in a fork of this
process, which has imported the libraries already: importing torch and Lightning takes seconds.
"""

from __future__ import annotations

import inspect
import json
import os
import pydoc
import sys
from functools import cache
from importlib.machinery import SourceFileLoader
from typing import Any

# a fork imports the package again: without this it would compile it again too
SourceFileLoader.get_code = cache(SourceFileLoader.get_code)  # type: ignore[method-assign]


def libraries() -> list[str]:
    """Return the libraries loaded so far."""
    return sorted({name.partition(".")[0] for name in sys.modules})


def without(missing: list[str]) -> list[str]:
    """Return the root names that cannot be imported when these libraries are not installed."""
    for name in list(sys.modules):
        if name.partition(".")[0] == "penstock":
            del sys.modules[name]
    hidden = [name for name in sys.modules if name.partition(".")[0] in missing]
    sys.modules.update(dict.fromkeys([*missing, *hidden]))
    import penstock

    before = {name: hasattr(penstock, name) for name in penstock._HOME}
    scope: dict[str, Any] = {}
    exec("from penstock import *", scope)
    assert set(penstock.__all__) <= set(scope)
    assert {name for name, _ in inspect.getmembers(penstock)} >= set(penstock.__all__)
    assert set(dir(penstock)) == set(penstock.__all__) and pydoc.render_doc(penstock)
    gone = [name for name, there in before.items() if not there]
    assert not set(gone) & set(penstock.__all__)
    for name in gone:
        try:
            exec(f"from penstock import {name}")
        except penstock.MissingExtraError as error:
            assert "pip install 'penstock[" in str(error), error
    return gone


def in_a_fork(missing: list[str]) -> Any:
    """Return what `without` returns in a child process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, json.dumps(without(missing)).encode())
            status = 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        found = file.read()
    _, status = os.waitpid(child, 0)
    return json.loads(found) if status == 0 else f"failed without {missing}"


def main() -> None:
    """Print what is found."""
    import penstock

    found: dict[str, Any] = {"import penstock": libraries()}
    penstock.ShuffledOrder(9, 1)
    found["an order"] = libraries()
    from penstock import StreamLoader as StreamLoader

    modules = [name for name in sys.modules if name.partition(".")[0] == "penstock"]
    found["modules of StreamLoader"] = len(modules)
    from penstock import ChunkedDataLoader as ChunkedDataLoader

    found["the loaders"] = libraries()
    for name in penstock._HOME:
        getattr(penstock, name)
    for extra, missing in json.load(sys.stdin).items():
        found[extra] = in_a_fork(missing.split())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
