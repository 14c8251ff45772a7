"""What every test can use: stores that are checked when the test is over, and how long Hypothesis may look."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import kvstore
from tests.kernel.both import lookups_both_ways
from tests.support import proof, s3
from tests.support.image_workers import ForkedWorker, images_by
from tests.support.order import rank_of, scope_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "quick",
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("long", settings.get_profile("quick"), max_examples=1_000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

_numbers = count()
OpenStore = Callable[..., kvstore.Store]
BEGAN = pytest.StashKey[float]()
TOLD = "told"
"""The user property of a test that has lines for the end of the output; reports bring it from where the test ran."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long rooms first."""
    items.sort(key=lambda item: rank_of(item.nodeid))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Two workers with a session of Spark each would only be slow, which no test would show."""
    if item.get_closest_marker("spark") and scope_of(item.nodeid) != "spark":
        pytest.fail("tests/support/order.py does not know that this needs Spark", pytrace=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With ``-n``, see :mod:`tests.support.workers`."""
    from tests.support.workers import Scheduling

    return Scheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """See :mod:`tests.support.proof`."""
    parser.addoption(
        "--proof", choices=["per-change", "nightly"], help="fail unless the figures of a column are reached"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEGAN] = time.monotonic()
    gc.disable()  # until all tests are there: none of that is garbage


def pytest_collection_finish() -> None:
    """The collector need not look through thousands of tests again and again, which took 7% of the run."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that tried less than it should has not passed."""
    reporter, column = session.config.pluginmanager.get_plugin("terminalreporter"), session.config.getoption("--proof")
    if column is None or reporter is None:
        return
    reports = _reports(reporter)
    found = proof.proved(reports)
    if session.exitstatus == pytest.ExitCode.OK:
        if column == "nightly":
            seconds = time.monotonic() - session.config.stash[BEGAN]
            proof.keep(found, proof.impossible(reports), seconds)
        if proof.lacking(found, column, proof.impossible(reports)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _reports(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    return [each for some in reporter.stats.values() for each in some if isinstance(each, pytest.TestReport)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write what tests reported, by name, and what was tried."""
    reports = _reports(terminalreporter)
    reported = {
        report.nodeid: [line for name, line in report.user_properties if name == TOLD]
        for report in reports
        if report.when == "call"
    }
    for nodeid in sorted(reported):
        for line in reported[nodeid]:
            terminalreporter.write_line(f"{nodeid.partition('::')[2]}: {line}")
    column = terminalreporter.config.getoption("--proof")
    if column is not None:
        found, not_here = proof.proved(reports), proof.impossible(reports)
        lines = proof.table(found)
        lines += [f"not possible here: {figure}: {reason}" for figure, reason in not_here.items()]
        for line in [*lines, *(f"too little: {line}" for line in proof.lacking(found, column, not_here))]:
            terminalreporter.write_line(line)


@pytest.fixture(autouse=True)
def _unhurried(request: pytest.FixtureRequest) -> None:
    """Long tests are no hang: whatever they wait for has a limit of its own."""
    if request.node.get_closest_marker("long") or request.node.get_closest_marker("nightly"):
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def _images_by_forked_processes() -> Iterator[None]:
    """See :mod:`tests.support.image_workers`; tests/checkpoint/test_processes.py has the store's own workers."""
    with images_by(ForkedWorker):
        yield


@pytest.fixture
def proves(request: pytest.FixtureRequest) -> proof.Proves:
    """Adds to a figure of what was tried; counts if the test passes."""
    return proof.Proves(request.node.user_properties)


@pytest.fixture
def usual_handlers() -> Iterator[None]:
    """Only Ctrl-C has a handler of Python's, as in a program that sets none, and has it still after the test.

    Spark sets one, for all tests of the process, and a shell has what it starts with ``&`` ignore Ctrl-C.
    """
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for number, handler in before.items():
        if callable(handler) or number == signal.SIGINT:
            signal.signal(number, handler)


@pytest.fixture
def both_ways() -> Iterator[list[int]]:
    """Lookups are made with and without the native kernel, and must come to the same; see tests/kernel/both.py."""
    with lookups_both_ways() as counts:
        yield counts


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


@pytest.fixture(scope="module")
def store_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kvstore.Store]:
    """A store for all tests of a module that leave it as it was, such as those of what is refused."""
    path = tmp_path_factory.mktemp("module") / "store"
    with kvstore.open(path) as store:
        yield store
    with kvstore.open(path) as store:
        report = store.check()
    assert report.ok, report.findings


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
        # Queries of a few rows end before Java has compiled what Spark would write for them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    builder = configure(SparkSession.builder.master("local[2]"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    if os.environ.get("KVSTORE_TEST_SPARK") == "python":
        builder = builder.config("spark.jars", "")  # the Python source instead of the connector
    session = builder.getOrCreate()
    session.dataSource.register(KvStoreSource)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 of this machine, for all tests of this process."""
    with s3.serving() as endpoint:
        yield endpoint


@pytest.fixture
def s3_url(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket of the test's own, ``s3://…``; the environment says how to come there, also to processes it starts."""
    for name, value in s3.environment(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{next(_numbers)}"
    s3.create_bucket(s3_endpoint, bucket)
    return f"s3://{bucket}"
