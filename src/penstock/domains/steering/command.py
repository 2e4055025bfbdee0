"""`penstock validate`: check a steering dataset directory."""

from __future__ import annotations

from pathlib import Path

from penstock.domains.steering.tables import convert_to_hdf5
from penstock.domains.steering.validation import validate_dataset
from penstock.errors import ConfigError

NOT_VALID = 1


def run_validate(directory: Path, *, as_json: bool) -> tuple[str, int]:
    """Return the findings, as text or as a JSON object, and the exit code: 1 if there are any."""
    if not directory.is_dir():
        raise ConfigError(f"there is no directory {directory}")
    if not any((directory / name).exists() for name in ("config.json", "pair_index.pt")):
        raise ConfigError(f"{directory} is not a steering dataset: it has no config.json")
    report = validate_dataset(directory)
    code = 0 if report.ok else NOT_VALID
    if as_json:
        return report.to_json(), code
    if report.ok:
        return str(report), code
    faults = "1 fault" if len(report.findings) == 1 else f"{len(report.findings)} faults"
    return "\n  ".join([f"{report.subject} has {faults}:", *map(str, report.findings)]), code


class Hdf5Converter:
    """Converts a steering directory for `penstock convert`: its .pt files become one HDF5 file."""

    @staticmethod
    def accepts(path: Path) -> bool:
        """Return whether ``path`` is a steering directory with .pt files."""
        return (path / "config.json").is_file() and (path / "pair_index.pt").is_file()

    @staticmethod
    def convert(source: Path, target: Path) -> None:
        """Write dataset.h5 and config.json into the directory ``target``."""
        convert_to_hdf5(source, target)
