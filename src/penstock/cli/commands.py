"""The commands, each a thin door to a function of the library."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

import penstock
from penstock.cli.demo import run_demo
from penstock.cli.demo_training import train
from penstock.errors import PenstockError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def version(asked: bool) -> None:
    """Print the version and leave."""
    if asked:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def root(
    asked: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Feeds PyTorch training: never starves it, never repeats or skips a sample."""


@app.command()
def demo(
    directory: Annotated[Path | None, typer.Option(help="Keep the data and runs here.")] = None,
) -> None:
    """Train from Zarr in chunks, be killed half way, resume, and prove that nothing was lost."""
    try:
        if directory is not None:
            raise SystemExit(run_demo(directory))
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
            raise SystemExit(run_demo(Path(folder)))
    except PenstockError as error:
        print(f"penstock: {error}", file=sys.stderr)
        raise SystemExit(1) from None


@app.command(hidden=True)
def demo_training(data: Path, run: Path, kill_at: int = -1) -> None:
    """One training process of the demo; kills itself at a step, if told."""
    train(data, run, kill_at=kill_at)
