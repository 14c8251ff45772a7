"""What a process did with a store, and how far readers of changes lag, for people and for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from kvstore.errors import InvalidRequest, StoreError
from kvstore.log.segments import LogFiles
from kvstore.process.meter import GETS_TIMED
from kvstore.replica import registry
from kvstore.store.runtime import StoreRuntime
from logformat.ids import Offset

Metrics: TypeAlias = dict[str, Any]
Format: TypeAlias = Literal["dict", "prometheus"]

_FORMATS = ("dict", "prometheus")
_HELP = {
    "kvstore_batches_total": ("counter", ("table",), "Batches that this process appended to changelogs."),
    "kvstore_changes_total": ("counter", ("table",), "Offsets that they took: changes, and one for an empty batch."),
    "kvstore_log_bytes_total": ("counter", ("table",), "Their bytes."),
    "kvstore_gets_total": ("counter", ("table",), "Calls of get, counted in steps of 32: up to 31 are missing."),
    "kvstore_append_seconds": ("summary", ("table",), "Groups of requests, from the first change to the answers."),
    "kvstore_commit_seconds": ("summary", ("table",), "Merges into indexes."),
    "kvstore_memtable_wait_seconds": ("summary", ("table",), "Merges that writes waited for."),
    "kvstore_memtable_bytes": ("gauge", ("table",), "Memory of what is acknowledged and not yet in the indexes."),
    "kvstore_memtable_limit_bytes": ("gauge", (), "What that may take, of all tables together."),
    "kvstore_get_seconds": ("summary", ("table",), "One in 32 calls of get."),
    "kvstore_fsync_seconds": ("summary", (), "Syncs of logs and other files."),
    "kvstore_checkpoint_seconds": ("summary", (), "Checkpoints of the catalog that succeeded."),
    "kvstore_consumer_lag_changes": ("gauge", ("consumer", "table"), "Offsets that a consumer has yet to commit."),
    "kvstore_consumer_lag_seconds": (
        "gauge",
        ("consumer", "table"),
        "Since the commit of the first change that a consumer has yet to commit.",
    ),
    "kvstore_consumer_log_bytes": (
        "gauge",
        ("consumer", "table"),
        "About the bytes of log from a consumer's position on, of the bucket with most.",
    ),
    "kvstore_replica_lag_edits": ("gauge", ("replica",), "Edits of the catalog that a replica lacks."),
}
_QUANTILES = {"0.5": "p50", "0.99": "p99"}


def metrics(runtime: StoreRuntime, format: Format) -> Metrics | str:
    """See :meth:`kvstore.Store.metrics`."""
    if format not in _FORMATS:
        raise InvalidRequest('`format` is "dict" or "prometheus".', given=format)
    figures = _found(runtime)
    return prometheus_text(figures, _HELP) if format == "prometheus" else figures


def prometheus_text(figures: Metrics, about: Mapping[str, tuple[str, tuple[str, ...], str]]) -> str:
    """Metrics in the text format of Prometheus, version 0.0.4, as :meth:`kvstore.Store.metrics` returns them.

    Args:
        figures: Values by name of the metric, and by its labels, as far as it has any: ``{"lag": {"reader": 3}}``.
        about: For each metric its kind (such as ``gauge``), the names of its labels, and what it is.
    """
    return "".join(_lines(figures, about))


def _found(runtime: StoreRuntime) -> Metrics:
    meters, catalog = runtime.meter.tables, runtime.catalog()
    names = {id: catalog.tables[id].name for id in meters if id in catalog.tables}
    tables = {name: meters[id] for id, name in names.items()}
    sizes = runtime.budget.sizes()
    lags = consumer_lags(runtime)
    written = {name: meter.written for name, meter in tables.items()}
    return {
        "kvstore_batches_total": {name: batches for name, (batches, _, _) in written.items()},
        "kvstore_changes_total": {name: offsets for name, (_, offsets, _) in written.items()},
        "kvstore_log_bytes_total": {name: bytes for name, (_, _, bytes) in written.items()},
        "kvstore_gets_total": {name: GETS_TIMED * meter.get.read().count for name, meter in tables.items()},
        "kvstore_append_seconds": {name: asdict(meter.append.read()) for name, meter in tables.items()},
        "kvstore_commit_seconds": {name: asdict(meter.commit.read()) for name, meter in tables.items()},
        "kvstore_memtable_wait_seconds": {name: asdict(meter.wait.read()) for name, meter in tables.items()},
        "kvstore_memtable_bytes": {name: sizes.get(id, 0) for id, name in names.items()},
        "kvstore_memtable_limit_bytes": runtime.budget.limit,
        "kvstore_get_seconds": {name: asdict(meter.get.read()) for name, meter in tables.items()},
        "kvstore_fsync_seconds": asdict(runtime.meter.sync.read()),
        "kvstore_checkpoint_seconds": asdict(runtime.meter.checkpoint.read()),
        "kvstore_consumer_lag_changes": _each(lags, lambda lag: lag.changes),
        "kvstore_consumer_lag_seconds": _each(lags, lambda lag: lag.seconds),
        "kvstore_consumer_log_bytes": _each(lags, lambda lag: lag.log_bytes),
        "kvstore_replica_lag_edits": _replica_lags(runtime),
    }


@dataclass(frozen=True, slots=True)
class ConsumerLag:
    """How far a consumer is from the end of a table's changelog.

    Attributes:
        changes: Offsets that it has yet to commit.
        seconds: Since the commit of the first of them, by the wall clock; 0.0 if there are none.
        log_bytes: About the bytes of log from its position on, of the bucket with most: these can't expire.
    """

    changes: int
    seconds: float
    log_bytes: int


def consumer_lags(runtime: StoreRuntime) -> dict[str, dict[str, ConsumerLag]]:
    """Lag of each consumer, by its name and the table's; without those whose log can't be read."""
    catalog, now = runtime.catalog(), runtime.clock.now_ms()
    lag_by_name: dict[str, dict[str, ConsumerLag]] = {}
    for id, consumers in catalog.consumers.items():
        table = runtime.open_table(catalog.tables[id])
        ends: list[tuple[LogFiles, Offset]] | None = None
        for name, positions in consumers.lasting().items():
            with suppress(StoreError):  # it is dropped, damaged, or beyond a limit: `check` and its next read say so
                ends = ends or [(handle.log, handle.state().applied_offset) for handle in table.handles]
                lags = [_lag(*end, Offset(positions[bucket]), now) for bucket, end in enumerate(ends)]
                lag_by_name.setdefault(name, {})[catalog.tables[id].name] = ConsumerLag(
                    sum(each.changes for each in lags),
                    max(each.seconds for each in lags),
                    max(each.log_bytes for each in lags),
                )
    return lag_by_name


def _lag(log: LogFiles, end: Offset, position: Offset, now_ms: int) -> ConsumerLag:
    if position >= end:
        return ConsumerLag(0, 0.0, 0)
    start = max(position, log.start())
    timestamp = next(log.batches(start, Offset(start + 1), counts_only=True)).header.commit_timestamp
    return ConsumerLag(end - position, max(now_ms - timestamp, 0) / 1000, log.bytes_between(start, end))


def _each(
    lags: Mapping[str, Mapping[str, ConsumerLag]], value: Callable[[ConsumerLag], float]
) -> dict[str, dict[str, float]]:
    return {name: {table: value(lag) for table, lag in tables.items()} for name, tables in lags.items()}


def _replica_lags(runtime: StoreRuntime) -> dict[str, int]:
    try:
        return registry.lags(runtime)
    except StoreError:
        return {}  # `check` and `Store.health` say what can't be read


def _lines(figures: Metrics, about: Mapping[str, tuple[str, tuple[str, ...], str]]) -> Iterator[str]:
    for name, (kind, labels, what) in about.items():
        yield f"# HELP {name} {what}\n# TYPE {name} {kind}\n"
        for values, sample in _samples(figures[name], len(labels)):
            given = dict(zip(labels, values, strict=True))
            if kind != "summary":
                yield f"{name}{_labels(given)} {sample}\n"
                continue
            for quantile, of in _QUANTILES.items():
                yield f"{name}{_labels(given | {'quantile': quantile})} {sample[of]}\n"
            yield f"{name}_sum{_labels(given)} {sample['sum']}\n{name}_count{_labels(given)} {sample['count']}\n"


def _samples(figure: Any, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not depth:
        yield (), figure
        return
    for label, below in figure.items():
        for labels, sample in _samples(below, depth - 1):
            yield (label, *labels), sample


def _labels(given: Mapping[str, str]) -> str:
    if not given:
        return ""
    quoted = (value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for value in given.values())
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(given, quoted, strict=True)) + "}"
