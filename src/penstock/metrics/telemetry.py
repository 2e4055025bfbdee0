"""Figures of a loader for loggers: plain numbers, Prometheus, OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import Any, Final

from penstock.extras import optional
from penstock.metrics.recorder import Recorder
from penstock.metrics.snapshot import share_of
from penstock.ranks import current_topology

# name, unit, description, and the values of a recorder by stage; "" where there are no stages
COUNTERS: Final[tuple[tuple[str, str, str, Callable[[Recorder], Mapping[str, float]]], ...]] = (
    ("batches", "", "Batches that were requested", lambda made: {"": made.sums.batches}),
    ("samples", "", "Samples delivered", lambda made: {"": made.sums.samples}),
    ("waiting", "s", "Seconds that training waited for data", lambda made: {"": made.sums.waited}),
    ("step", "s", "Seconds from a batch to the next request", lambda made: {"": made.sums.stepped}),
    ("stage", "s", "Seconds of the stages of loading that were measured", Recorder.stage_seconds),
)
GAUGES: Final = (("epoch", "Epoch of the last batch"), ("position", "Its position in the epoch"))


class Gauges:
    """Numbers for a logger: rates since the last reading, and the position in the data.

    They are ``penstock/waiting_share``, of the time spent waiting and in steps;
    ``penstock/samples_per_second``, of this rank; and of the last batch ``penstock/epoch``,
    ``penstock/position`` and, if the loader has chunks, ``penstock/chunk``. The position is in
    samples of all ranks, or in batches for an iterable dataset. The chunk is counted from 0 in its
    epoch, or over all epochs if sizes change.

    Args:
        loader: A loader of Penstock.

    >>> from penstock import ChunkedDataLoader
    >>> loader = ChunkedDataLoader(list(range(40)), batch_size=4, chunk_size=5)
    >>> gauges = Gauges(loader)
    >>> for batch in [*loader, *loader]:
    ...     figures = gauges.read()  # logger.log(gauges.read())
    >>> figures["penstock/epoch"], figures["penstock/chunk"], figures["penstock/position"]
    (0, 1, 36)
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self._metrics = loader, recorder_of(loader)
        self._before = self._sums()

    def _sums(self) -> tuple[float, float, float, float]:
        sums = self._metrics.sums
        return perf_counter(), sums.samples, sums.waited, sums.stepped

    def read(self) -> dict[str, float]:
        """Return the numbers by name. Call it in the thread that iterates over the loader."""
        now = self._sums()
        since = [a - b for a, b in zip(now, self._before, strict=True)]
        self._before = now
        seconds, samples, waited, stepped = since
        found = {
            "penstock/waiting_share": share_of(waited, stepped),
            "penstock/samples_per_second": samples / max(seconds, 1e-9),
        }
        return found | {f"penstock/{name}": value for name, value in self._position().items()}

    def _position(self) -> dict[str, int]:
        cursor = self._metrics.cursor
        if cursor is None:
            return {}
        found = {"epoch": cursor[0], "position": cursor[1]}
        if getattr(self._loader, "chunk_size", None) is not None:
            position = self._loader.position
            steps, progress = position.plan.steps.of(cursor[0]), position.progress
            found["chunk"] = progress.chunks if progress else steps.chunk_of(cursor[1])
        return found


def export_to_prometheus(loaders: Mapping[str, Any], registry: Any = None) -> Any:
    """Export the figures of loaders through ``prometheus_client``; return the collector.

    They are read whenever Prometheus asks: the counters ``penstock_batches_total``,
    ``penstock_samples_total``, ``penstock_waiting_seconds_total``, ``penstock_step_seconds_total``
    and ``penstock_stage_seconds_total`` (by ``stage``), and the gauges ``penstock_epoch`` and
    ``penstock_position``, each with the labels ``loader`` and ``rank``.

    Args:
        loaders: Loaders of Penstock by name.
        registry: Where to register; None for ``prometheus_client.REGISTRY``.
            ``registry.unregister(collector)`` ends it.
    """
    core = optional("prometheus_client.core", extra="telemetry")
    collector = _Collector(core, *_recorders(loaders))
    (core.REGISTRY if registry is None else registry).register(collector)
    return collector


def export_to_opentelemetry(loaders: Mapping[str, Any], provider: Any = None) -> None:
    """Export the figures of loaders through OpenTelemetry, whenever its reader collects them.

    The observable counters are ``penstock.batches``, ``penstock.samples``, ``penstock.waiting``,
    ``penstock.step`` and ``penstock.stage`` (by ``stage``), the last three in seconds; the
    observable gauges ``penstock.epoch`` and ``penstock.position``. Attributes are ``loader`` and
    ``rank``.

    Args:
        loaders: Loaders of Penstock by name.
        provider: The meter provider; None for the global one. Shutting it down ends the export.
    """
    api = optional("opentelemetry.metrics", extra="telemetry")
    recorders, rank = _recorders(loaders)
    meter = (api.get_meter_provider() if provider is None else provider).get_meter("penstock")

    def observe(values: Callable[[Recorder], Mapping[str, float]]) -> Any:
        def callback(options: Any) -> list[Any]:
            return [
                api.Observation(
                    value, {"loader": name, "rank": rank} | ({"stage": stage} if stage else {})
                )
                for name, recorder in recorders.items()
                for stage, value in values(recorder).items()
            ]

        return [callback]

    for name, unit, text, values in COUNTERS:
        meter.create_observable_counter(f"penstock.{name}", observe(values), unit, text)
    for at, (name, text) in enumerate(GAUGES):
        meter.create_observable_gauge(f"penstock.{name}", observe(_cursor_part(at)), "", text)


class _Collector:
    """The collector that ``prometheus_client`` asks for metrics, in its own thread."""

    def __init__(self, core: Any, recorders: Mapping[str, Recorder], rank: str) -> None:
        self._core, self._recorders, self._rank = core, recorders, rank

    def collect(self) -> Iterator[Any]:
        """Yield all metrics."""
        families = self._core.CounterMetricFamily, self._core.GaugeMetricFamily
        for name, unit, text, values in COUNTERS:
            full = f"penstock_{name}_seconds" if unit else f"penstock_{name}"
            yield self._filled(families[0], full, text, values, staged=name == "stage")
        for at, (name, text) in enumerate(GAUGES):
            yield self._filled(families[1], f"penstock_{name}", text, _cursor_part(at))

    def _filled(
        self, family: Any, name: str, text: str, values: Any, *, staged: bool = False
    ) -> Any:
        made = family(name, text, labels=["loader", "rank", *(["stage"] if staged else [])])
        for loader, recorder in self._recorders.items():
            for stage, value in values(recorder).items():
                made.add_metric([loader, self._rank, *([stage] if staged else [])], value)
        return made


def recorder_of(loader: Any) -> Recorder:
    """Return the recorder of a loader; raise ``TypeError`` if it is not a loader of Penstock."""
    found = getattr(loader, "metrics", None)
    if not isinstance(found, Recorder):
        raise TypeError(f"loader must be a loader of Penstock, got {type(loader).__name__}")
    return found


def _recorders(loaders: Mapping[str, Any]) -> tuple[dict[str, Recorder], str]:
    """Return the recorders, which do not keep their loaders alive, and this rank."""
    found = {name: recorder_of(loader) for name, loader in loaders.items()}
    return found, str(current_topology(None, None).rank)


def _cursor_part(at: int) -> Callable[[Recorder], dict[str, float]]:
    return lambda recorder: {} if recorder.cursor is None else {"": recorder.cursor[at]}
