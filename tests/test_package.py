"""The wheel has the packages, their types and the licence, and nothing else; its version is the one in the code.

It is built as an installation from a checkout builds it, without a network.
"""

from __future__ import annotations

import email
import os
import subprocess
import sys
import venv
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

import kvstore
from tests.cli.commands import run
from tests.support.package import PACKAGES, ROOT, closure, link

INFORMATION = f"kvstore_cdc-{kvstore.__version__}.dist-info"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(directory), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = directory.iterdir()
    assert path.name == f"kvstore_cdc-{kvstore.__version__}-py3-none-any.whl"
    return ZipFile(path)


@pytest.fixture(scope="module")
def unpacked(wheel: ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the wheel has; its modules are compiled once."""
    directory = tmp_path_factory.mktemp("unpacked")
    wheel.extractall(directory)
    return directory


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    return email.message_from_bytes(wheel.read(f"{INFORMATION}/METADATA"))


def test_the_wheel_has_every_module_of_the_packages_and_nothing_else(wheel: ZipFile) -> None:
    modules = {str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    types = {f"{name}/py.typed" for name in PACKAGES} | {"kvstore/spark/worker-python"}
    modules |= {str(path.relative_to(ROOT)) for path in (ROOT / "kvstore/spark/connector/scala").glob("*.scala")}
    modules |= {str(path.relative_to(ROOT)) for path in (ROOT / "kvstore/console/assets").iterdir()}
    modules |= {str(path.relative_to(ROOT)) for path in (ROOT / "kvstore/kernel").glob("*.[ch]")}
    information = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE"}
    assert set(wheel.namelist()) == modules | types | {f"{INFORMATION}/{name}" for name in information}


def test_the_wheel_has_the_licence_as_it_is_here(wheel: ZipFile) -> None:
    for name in ("LICENSE", "NOTICE"):
        assert wheel.read(f"{INFORMATION}/licenses/{name}") == (ROOT / name).read_bytes()


def test_the_metadata_names_the_distribution_its_version_and_its_licence(metadata: Message) -> None:
    assert metadata["Name"] == "kvstore-cdc"
    assert metadata["Version"] == kvstore.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert metadata["Author"] == "the kvstore developers"
    classifiers = metadata.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers
    # The licence expression stands for these; the package index refuses both together.
    assert not [classifier for classifier in classifiers if classifier.startswith("License ::")]


def test_the_metadata_names_no_address_of_the_project(metadata: Message) -> None:
    assert metadata.get_all("Project-URL") is None
    assert metadata["Home-page"] is None


def test_the_unpacked_wheel_is_imported_without_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    code = "import kvstore, logformat, merge_engines, writer; print(kvstore.__file__, kvstore.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == [str(unpacked / "kvstore/__init__.py"), kvstore.__version__]


@pytest.fixture(scope="module")
def environment(metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the dependencies without extras, as they are here, and nothing else."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    link(closure(*(metadata.get_all("Requires-Dist") or [])), site)
    return directory


@pytest.mark.parametrize("kind", ["wheel", pytest.param("source distribution", marks=pytest.mark.long)])
def test_an_empty_environment_runs_what_was_installed(
    wheel: ZipFile, environment: Path, tmp_path: Path, kind: str
) -> None:
    package = Path(wheel.filename or "")
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    if kind == "source distribution":
        build = [sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(tmp_path)]
        subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
        (package,) = tmp_path.iterdir()
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *offline, "--force-reinstall"]
    backend = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)} if kind == "source distribution" else None
    subprocess.run([*pip, "--no-compile", str(package)], check=True, env=backend)
    code = "import kvstore, importlib.util as u; print(kvstore.__file__, u.find_spec('pyspark'), u.find_spec('pandas'))"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    about = subprocess.run([python, "-c", code], cwd=tmp_path, env=clean, check=True, capture_output=True, text=True)
    assert about.stdout.split() == [
        str(next(environment.glob("lib/*/site-packages/kvstore/__init__.py"))),
        "None",
        "None",
    ]
    without = subprocess.run([python, "-c", "import kvstore.testing"], env=clean, capture_output=True, text=True)
    assert "ImportError: kvstore.testing needs Hypothesis: install the extra `testing`" in without.stderr
    demo = [environment / "bin" / "kvstore", "demo"]
    done = subprocess.run(demo, cwd=tmp_path, env=clean, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "a small history of its own" in done.stdout.replace("\n", " ")


def test_everyday_uses_work_as_they_are_written_from_the_wheel(
    unpacked: Path, metadata: Message, tmp_path: Path
) -> None:
    venv.create(tmp_path / "environment", symlinks=True)
    (site,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    link(closure(*(metadata.get_all("Requires-Dist") or []), "duckdb", "pandas", "polars", "pydantic"), site)
    for each in unpacked.iterdir():
        (site / each.name).symlink_to(each)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    uses = [tmp_path / "environment/bin/python", ROOT / "examples/everyday.py"]
    done = subprocess.run(uses, cwd=tmp_path, env=clean, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    uses_of_docs = f"`examples/everyday.py` has {len(done.stdout.splitlines())} uses"
    assert uses_of_docs in (ROOT / "docs/everyday.md").read_text()


MODEL_KEEPS_THE_RULES = """
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from kvstore import testing

class Target(testing.Model):
    def append(self, operations, *, bucket, writer, sequence, epoch):
        try:
            return self.apply(operations, writer, sequence, epoch)
        except testing.Refused as refused:
            raise refused.error("Refused.")

    def changes(self, bucket):
        return [(offset, "upsert", row) for offset, _, row, _ in self.log]

class Machine(testing.SequenceMachine):
    image = "append"

    def create(self):
        return Target(())

run_state_machine_as_test(Machine, settings=settings(Machine.TestCase.settings, max_examples=10, database=None))
print(testing.__file__)
"""


def test_the_unpacked_wheel_tests_sequences_with_hypothesis(unpacked: Path, environment: Path, tmp_path: Path) -> None:
    link(closure("hypothesis"), tmp_path)
    program = [environment / "bin" / "python", "-c", MODEL_KEEPS_THE_RULES]
    done = subprocess.run(
        program, cwd=tmp_path, env={"PYTHONPATH": f"{unpacked}:{tmp_path}"}, check=False, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.stdout == f"{unpacked}/kvstore/testing/__init__.py\n"


def test_the_command_prints_the_version() -> None:
    done = run("--version")
    assert (done.code, done.out, done.err) == (0, f"kvstore {kvstore.__version__}\n", "")
