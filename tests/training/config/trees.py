"""Configuration files for tests."""

from pathlib import Path
from textwrap import dedent

S4 = Path(__file__).parents[1] / "s4" / "configs"


def written(folder: Path, **files: str) -> Path:
    """Files by path (``trainer__default`` is trainer/default.yaml); the first one."""
    paths = [folder / f"{name.replace('__', '/')}.yaml" for name in files]
    for path, text in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
    return paths[0]
