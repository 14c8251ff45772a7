"""Wheels with the native kernel: each is for its system, and one of them works here without a compiler."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import kvstore
from kvstore.kernel.library import library_path
from tests.support.package import ROOT, closure, link

ZIG = ROOT / ".venv/zig/bin/python"
SYSTEMS = {
    "linux-x86_64": "manylinux2014_x86_64.manylinux_2_17_x86_64",
    "linux-aarch64": "manylinux2014_aarch64.manylinux_2_17_aarch64",
    "macos-arm64": "macosx_11_0_arm64",
}
X86_64, AARCH64 = 62, 183
"""Machines in an ELF header."""
ARM64, DYLIB, CODE_SIGNATURE, BUILD_VERSION = 0x0100000C, 6, 0x1D, 0x32
"""The machine, the kind of file and two commands in a Mach-O header."""

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not ZIG.exists(), reason="wheels with the native kernel need ziglang: make .venv/zig/ready"),
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ZipFile]:
    """The wheel of each system."""
    return {system: built(system, tmp_path_factory.mktemp("wheels")) for system in SYSTEMS}


def built(system: str, directory: Path) -> ZipFile:
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "wheel", *offline, "--wheel-dir", str(directory), str(ROOT)]
    environment = os.environ | {"KVSTORE_WHEEL": system, "HATCH_BUILD_HOOK_ENABLE_CUSTOM": "true"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = directory.iterdir()
    return ZipFile(path)


def library_of(wheel: ZipFile) -> bytes:
    (name,) = (name for name in wheel.namelist() if name.endswith(".so"))
    assert name == f"kvstore/kernel/{library_path().name}", "the name under which it is looked for"
    return wheel.read(name)


def test_each_wheel_says_for_which_systems_it_is(wheels: dict[str, ZipFile]) -> None:
    for system, wheel in wheels.items():
        path = Path(wheel.filename or "")
        assert sorted(path.stem.rpartition("-")[2].split(".")) == SYSTEMS[system].split(".")
        about = wheel.read(f"kvstore_cdc-{kvstore.__version__}.dist-info/WHEEL").decode()
        assert "Root-Is-Purelib: false" in about
        assert re.findall(r"^Tag: py3-none-(.*)$", about, re.MULTILINE) == SYSTEMS[system].split(".")
        assert [name for name in wheel.namelist() if name.endswith(".jar")]


@pytest.mark.parametrize(("system", "machine"), [("linux-x86_64", X86_64), ("linux-aarch64", AARCH64)])
def test_a_library_for_linux_needs_no_newer_c_library_than_the_wheel_says(
    wheels: dict[str, ZipFile], system: str, machine: int
) -> None:
    data = library_of(wheels[system])
    assert data[:7] == b"\x7fELF\x02\x01\x01", "64 bits, little-endian"
    assert struct.unpack_from("<HH", data, 16) == (3, machine), "a shared object"
    versions = {tuple(map(int, each.split(b"."))) for each in re.findall(rb"GLIBC_([0-9.]+)\0", data)}
    assert versions
    assert max(versions) <= (2, 17)


def test_the_library_for_macos_is_signed_and_for_its_oldest_version(wheels: dict[str, ZipFile]) -> None:
    data = library_of(wheels["macos-arm64"])
    magic, machine, _, kind, commands = struct.unpack_from("<IIIII", data)
    assert (magic, machine, kind) == (0xFEEDFACF, ARM64, DYLIB)
    found, at = {}, 32
    for _ in range(commands):
        command, size = struct.unpack_from("<II", data, at)
        found[command], at = at, at + size
    assert CODE_SIGNATURE in found, "macOS loads no library for ARM without one"
    system, oldest = struct.unpack_from("<II", data, found[BUILD_VERSION] + 8)
    assert (system, oldest) == (1, 11 << 16)


USE = """
import kvstore
with kvstore.open("s") as store:
    table = store.create_table("t", {"k": "int64", "v": "string"}, primary_key="k")
    table.upsert([{"k": k, "v": str(k)} for k in range(1000)])
    assert table.lookup(list(range(1500))).column("_found").to_pylist() == [k < 1000 for k in range(1500)]
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no wheel for this machine has the kernel")
def test_an_environment_without_a_compiler_uses_the_kernel(wheels: dict[str, ZipFile], tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", symlinks=True)
    (site,) = (tmp_path / "environment").glob("lib/python*/site-packages")
    link(closure("kvstore-cdc"), site)
    for path in site.glob("*kvstore_cdc*"):  # as it is installed here: the checkout
        path.unlink()
    python = tmp_path / "environment/bin/python"
    wheel = wheels[f"linux-{platform.machine()}"].filename or ""
    offline = ("--no-index", "--no-deps", "--disable-pip-version-check", "--quiet")
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", *offline, wheel], check=True)
    clean = {"PATH": str(tmp_path / "nothing")}
    assert shutil.which("cc", path=clean["PATH"]) is None
    subprocess.run([python, "-c", USE], cwd=tmp_path, env=clean, check=True)
    command = [python, tmp_path / "environment/bin/kvstore", "doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True)
    (kernel,) = (each for each in json.loads(done.stdout)["optional"] if each["name"] == "native kernel")
    assert Path(kernel["version"]) == site / "kvstore/kernel" / library_path().name
