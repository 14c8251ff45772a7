"""What every test can use: stores that are checked when the test is over, and how long Hypothesis may look."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import kvstore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "quick",
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("long", settings.get_profile("quick"), max_examples=5_000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

OpenStore = Callable[..., kvstore.Store]
TOLD = "told"
"""The user property of a test that has lines for the end of the output; reports bring it from where the test ran."""
LONG_ROOMS = ("spark", "crash", "table", "cli", "store", "logformat")
"""What takes longest begins first, so that workers end together."""
SINGLE = "crash"
"""A room whose tests are spread one by one; those of others go to a worker a file at a time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order tests, and group them for ``-n``: all that need Spark in one, for there is one session in the run."""
    ranks = {}
    for item in items:
        room = item.path.parent.name
        if item.get_closest_marker("spark"):
            room = "spark"
        ranks[item] = LONG_ROOMS.index(room) if room in LONG_ROOMS else len(LONG_ROOMS)
        if room != SINGLE:
            item.add_marker(pytest.mark.xdist_group("spark" if room == "spark" else f"{room}-{item.path.stem}"))
    items.sort(key=ranks.__getitem__)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write what tests told, by name."""
    reports = [report for some in terminalreporter.stats.values() for report in some]
    told = {
        report.nodeid: [line for name, line in report.user_properties if name == TOLD]
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
    }
    for nodeid in sorted(told):
        for line in told[nodeid]:
            terminalreporter.write_line(f"{nodeid.partition('::')[2]}: {line}")


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where a store may be created."""
    return tmp_path / "store"


@pytest.fixture
def open_store(store_path: Path) -> Iterator[OpenStore]:
    """Opens the test's store; at the end it is closed, opened again and must pass its own check."""
    opened: list[kvstore.Store] = []

    def open_again(**options: object) -> kvstore.Store:
        opened.append(kvstore.open(store_path, **options))
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()
    with kvstore.open(store_path) as store:
        report = store.check()
    assert report.ok, report.findings


@pytest.fixture
def store(open_store: OpenStore) -> kvstore.Store:
    """A new, empty store."""
    return open_store()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the run."""
    from pyspark.sql import SparkSession

    from kvstore.spark import KvStoreSource, configure

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    builder = configure(SparkSession.builder.master("local[2]"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.dataSource.register(KvStoreSource)
    yield session
    session.stop()
