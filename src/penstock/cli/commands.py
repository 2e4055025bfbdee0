"""The commands. Each imports its function when it is called, so that completion stays fast."""

from __future__ import annotations

import inspect
import logging
import os
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

import penstock
from penstock.cli.output import command_output, print_result
from penstock.errors import ConfigError
from penstock.extras import load_extensions

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

Config = Annotated[Path, typer.Argument(help="A YAML file, alone or in a tree of them.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[key=value]...", help="Settings to change.")
]
Data = Annotated[str, typer.Argument(help="A path or URL that open_source opens.")]
Target = Annotated[
    str, typer.Argument(help="A path or URL of data, a YAML file, or module:object.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Seconds = Annotated[float, typer.Option(min=0.1, help="How long to measure.")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Add a command, with an option ``--debug``; its errors become a sentence and an exit code."""

    @wraps(function)
    def run(*, debug: bool, **options: Any) -> None:
        with command_output(debug=debug):
            function(**options)

    option = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
    own = inspect.signature(function, eval_str=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    debug = inspect.Parameter("debug", kind, default=False, annotation=option)
    named = [each.replace(kind=kind) for each in own.parameters.values()]
    run.__signature__ = own.replace(parameters=[*named, debug])  # type: ignore[attr-defined]
    return app.command()(run)


def version(asked: bool) -> None:
    """Print the version and exit."""
    if asked:
        typer.echo(f"penstock {penstock.__version__}")
        raise typer.Exit


@app.callback()
def root(
    asked: Annotated[
        bool,
        typer.Option(
            "--version", callback=version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Load data for PyTorch training; a resumed run repeats no sample and skips none."""


@command
def demo(
    directory: Annotated[Path | None, typer.Option(help="Keep the data and runs here.")] = None,
) -> None:
    """Train from Zarr, kill and resume the run, check that nothing is lost, compare with torch."""
    from penstock.cli.demo import run_demo

    if directory is not None:
        code = run_demo(directory)
        print(f"data and both runs are in {directory}; demo.yaml is the configuration")
    else:
        page = Path(tempfile.gettempdir()) / "penstock-demo.html"
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
            code = run_demo(Path(folder), page=page)
        print("data and runs were removed; penstock demo --directory DIR keeps them")
    raise SystemExit(code)


@command
def train(
    config: Config,
    overrides: Overrides = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint of the run.")
    ] = False,
    chunk: Annotated[
        int | None, typer.Option(min=0, help="The chunk to start with, counted from 0.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate time and disk; train nothing.")
    ] = False,
) -> None:
    """Train in chunks through the whole dataset, validating after each."""
    from penstock.training.config import read_settings
    from penstock.training.run import forecast, is_first_rank
    from penstock.training.run import train as run

    first_rank = is_first_rank(os.environ)
    if not first_rank:
        logging.getLogger("penstock").setLevel(logging.WARNING)  # one process of a run reports
    settings = read_settings(config, overrides or [])
    if dry_run:
        print_result(forecast(settings))
        return
    outcome = run(settings, resume=resume, chunk=chunk)
    if first_rank:
        print_result(outcome.text())
    # launchers treat the exit code of the others as a failure
    raise SystemExit(outcome.exit_code if first_rank else 0)


@command
def plan(
    config: Config,
    overrides: Overrides = None,
    step: Annotated[int | None, typer.Option(min=0, help="Show the samples of this step.")] = None,
    sample: Annotated[
        int | None, typer.Option(min=0, help="Show when this sample was seen, and when it is next.")
    ] = None,
    skip_steps: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Show the positions of steps A to B - 1, to skip them."),
    ] = None,
) -> None:
    """Show what will be read, and when; the samples of a step, or the steps of a sample."""
    from penstock.training.config import read_settings
    from penstock.training.run import plan_text, sample_text, skip_text, step_text

    if sum(value is not None for value in (step, sample, skip_steps)) > 1:
        raise ConfigError("use only one of --step, --sample and --skip-steps")
    settings = read_settings(config, overrides or [])
    if step is not None:
        text = step_text(settings, step)
    elif sample is not None:
        text = sample_text(settings, sample)
    elif skip_steps is not None:
        text = skip_text(settings, skip_steps)
    else:
        text = plan_text(settings)
    print_result(text)


@command
def doctor(
    target: Target,
    as_json: AsJson = False,
) -> None:
    """Report what is wrong with a dataset and what to change; exit code 1 if anything is."""
    from penstock.cli.doctor import run_doctor

    run_doctor(target, as_json=as_json)


@command
def bench(
    source: Target,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of a batch.")] = 256,
    seconds: Seconds = 3.0,
    memory_budget: Annotated[str, typer.Option(help="Limit of the buffers.")] = "1GB",
    as_json: AsJson = False,
) -> None:
    """Compare the speed of a stream with the fastest way to read its storage."""
    from penstock.cli.measure import run_bench

    limits = {"seconds": seconds, "memory_budget": memory_budget}
    run_bench(source, batch_size=batch_size, as_json=as_json, **limits)  # type: ignore[arg-type]


@command
def tune(
    config: Config,
    overrides: Overrides = None,
    seconds: Seconds = 10.0,
    write: Annotated[
        bool, typer.Option("--write", help="Write the settings to the configuration.")
    ] = False,
) -> None:
    """Measure executors and settings of the training loader, and print the fastest."""
    from penstock.cli.measure import run_tune

    run_tune(config, overrides or [], seconds=seconds, write=write)


@command
def report(
    run_dir: Annotated[Path, typer.Argument(help="The run_dir of `penstock train`.")],
    output: Annotated[
        Path | None, typer.Option(help="The file to write; RUN_DIR/report.html by default.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Also write a trace for Perfetto or chrome://tracing.")
    ] = None,
) -> None:
    """Write one HTML page about a run: timeline, waiting, coverage, losses, and a verdict."""
    from penstock.report import write_report

    print_result(write_report(run_dir, output, trace))


@command
def validate(
    directory: Annotated[Path, typer.Argument(help="A steering dataset: config.json and files.")],
    as_json: AsJson = False,
) -> None:
    """Check every value of a dataset directory; exit code 1 if anything is wrong."""
    run = load_extensions("penstock.commands").get("validate")
    if run is None:
        raise ConfigError("nothing to validate with: penstock.domains.steering is not installed")
    text, code = run(directory, as_json=as_json)
    print_result(text)
    raise SystemExit(code)


@command
def convert(
    source: Annotated[
        Path, typer.Argument(help="What open_source opens: HDF5, netCDF, Zarr, tables, folders.")
    ],
    target: Annotated[Path, typer.Argument(help="What to write; must not exist yet.")],
    chunk_rows: Annotated[
        int | None, typer.Option(help="Rows per chunk; about 1 MB by default.")
    ] = None,
) -> None:
    """Write data as Zarr in a layout for streaming, or a steering directory as HDF5."""
    from penstock.cli.convert import run_convert

    run_convert(source, target, chunk_rows=chunk_rows)


@command
def stats(
    source: Data,
    output: Annotated[Path | None, typer.Option(help="Write JSON here, for Standardize.")] = None,
    fields: Annotated[str | None, typer.Option(help="Field names, separated by commas.")] = None,
    along: Annotated[str | None, typer.Option(help="The dimension of samples.")] = None,
    per: Annotated[
        str | None, typer.Option(help="Compute statistics for each index of this axis of a sample.")
    ] = None,
) -> None:
    """Compute mean, deviation and extremes of each field in one pass; NaN is left out."""
    from penstock.cli.convert import run_stats

    options = {"fields": fields.split(",") if fields else None, "along": _number_or_name(along)}
    run_stats(source, output, per=_number_or_name(per), **options)


def _number_or_name(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.lstrip("-").isdigit() else text
