"""Where the folder of a domain was deleted, tests that use the domain are left out, and listed."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import penstock

FOLDER = Path(__file__).parent
IN_CONFIGURATIONS = {"audio": "qautoaudio sc09"}  # names that a domain registers


@cache
def names_of_missing_domains() -> re.Pattern[str] | None:
    """Return a pattern for the names of domains that are not there; None if all are."""
    found: list[str] = []
    for name, module in penstock._HOME.items():
        package, _, domain = module.rpartition(".")
        if package == "penstock.domains" and find_spec(module) is None:
            names = f"{name} domains.{domain} domains/{domain} {IN_CONFIGURATIONS.get(domain, '')}"
            found += map(re.escape, names.split())
    return re.compile(rf"\b({'|'.join(found)})\b") if found else None


@cache
def uses_a_missing_domain(path: Path) -> bool:
    """Return whether a module of tests names a missing domain, or imports one that does."""
    pattern = names_of_missing_domains()
    if pattern is None or path.suffix != ".py" or not path.is_file():
        return False
    text = path.read_text()
    imported = [name.replace(".", "/") for name in re.findall(r"^from tests\.([\w.]+)", text, re.M)]
    imported += re.findall(r"^from tests import (\w+)", text, re.M)
    helpers = (FOLDER / f"{name}.py" for name in imported)
    return pattern.search(text) is not None or any(map(uses_a_missing_domain, helpers))


def left_out() -> list[str]:
    """Return the files of tests that are left out."""
    files = sorted(FOLDER.rglob("test_*.py"))
    return [str(f.relative_to(FOLDER)) for f in files if uses_a_missing_domain(f)]
