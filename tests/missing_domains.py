"""Where the folder of a domain was deleted, tests that use the domain are left out, and listed."""

import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import penstock

FOLDER = Path(__file__).parent
DOMAINS = Path(penstock.__file__).parent / "domains"
# names that a domain registers, and configurations and examples that use them
IN_CONFIGURATIONS = {"audio": "qautoaudio sc09 musdb18mono", "recording": "latent_streaming"}


@cache
def missing_domains() -> set[str]:
    """Return the domains that are not there, and those that build on one of them."""
    homes = {module.rpartition(".") for module in penstock._HOME.values()}
    domains = {name for package, _, name in homes if package == "penstock.domains"}
    missing = {name for name in domains if find_spec(f"penstock.domains.{name}") is None}
    imports = {each: f"penstock.domains.{each}" for each in missing}
    for name in domains - missing:
        text = "".join(file.read_text() for file in (DOMAINS / name).glob("*.py"))
        missing |= {name for module in imports.values() if module in text}
    return missing


@cache
def names_of_missing_domains() -> re.Pattern[str] | None:
    """Return a pattern for the names of domains that are not there; None if all are."""
    missing = missing_domains()
    if not missing:
        return None
    homes = penstock._HOME.items()
    names = [name for name, module in homes if module.rpartition(".")[2] in missing]
    names += [name for each in missing for name in IN_CONFIGURATIONS.get(each, "").split()]
    name, domain = "|".join(map(re.escape, names)), "|".join(missing)
    # not `loader.set_epoch`: many objects have a method of that name
    found = rf"\bdomains[./]({domain})\b|\bpenstock\.({name})\b|(?<!def )(?<!\.)\b({name})\b"
    return re.compile(found)


def names_a_missing_domain(text: str) -> bool:
    """Return whether a text names a missing domain or something in it."""
    pattern = names_of_missing_domains()
    return pattern is not None and pattern.search(text) is not None


@cache
def uses_a_missing_domain(path: Path) -> bool:
    """Return whether a module of tests names a missing domain, or imports one that does.

    A folder does if its ``conftest.py`` does.
    """
    path = path / "conftest.py" if path.is_dir() else path
    if names_of_missing_domains() is None or path.suffix != ".py" or not path.is_file():
        return False
    text = path.read_text()
    imported = [name.replace(".", "/") for name in re.findall(r"^from tests\.([\w.]+)", text, re.M)]
    imported += re.findall(r"^from tests import (\w+)", text, re.M)
    helpers = (FOLDER / f"{name}.py" for name in imported)
    return names_a_missing_domain(text) or any(map(uses_a_missing_domain, helpers))


def left_out() -> list[str]:
    """Return the files of tests that are left out."""
    files = sorted(FOLDER.rglob("test_*.py"))
    left = [f for f in files if uses_a_missing_domain(f) or uses_a_missing_domain(f.parent)]
    return [str(f.relative_to(FOLDER)) for f in left]
