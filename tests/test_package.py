"""The wheel has the packages, their types and the licence, and nothing else; its version is the one in the code.

It is built as an installation from a checkout builds it, without a network.
"""

from __future__ import annotations

import email
import subprocess
import sys
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

import pytest

import kvstore
from tests.cli.commands import run

ROOT = Path(__file__).parents[1]
PACKAGES = ("kvstore", "logformat", "merge_engines", "pyspark_kvstore", "writer")
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
def metadata(wheel: ZipFile) -> Message:
    return email.message_from_bytes(wheel.read(f"{INFORMATION}/METADATA"))


def test_the_wheel_has_every_module_of_the_packages_and_nothing_else(wheel: ZipFile) -> None:
    modules = {str(path.relative_to(ROOT)) for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    types = {f"{name}/py.typed" for name in PACKAGES} | {"kvstore/spark/worker-python"}
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


def test_the_unpacked_wheel_is_imported_without_the_checkout(wheel: ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    code = "import kvstore, logformat, merge_engines, writer; print(kvstore.__file__, kvstore.__version__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == [str(tmp_path / "site/kvstore/__init__.py"), kvstore.__version__]


def test_the_command_prints_the_version() -> None:
    done = run("--version")
    assert (done.code, done.out, done.err) == (0, f"kvstore {kvstore.__version__}\n", "")
