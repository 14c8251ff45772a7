"""What the wheels of ``make wheel`` have besides: the connector's jar, and for some systems the native kernel.

Git ignores both. ``KVSTORE_WHEEL`` names the system of a wheel with the kernel; a wheel without it is for all systems.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SYSTEMS = {
    "linux-x86_64": ("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64.manylinux2014_x86_64"),
    "linux-aarch64": ("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64.manylinux2014_aarch64"),
    "macos-arm64": ("aarch64-macos.11.0", "macosx_11_0_arm64"),
}
"""Systems with the kernel: what Zig calls each, with its oldest C library, and the platform tag of the wheel."""
ZIG = ".venv/zig/bin/python"


class WheelHook(BuildHookInterface):
    """The hook that hatchling finds in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Have the jar and the kernel taken along."""
        jars = "kvstore/spark/connector/*.jar"
        if not any(Path(self.root).glob(jars)):
            raise FileNotFoundError("Make the jar of the connector first: python -m kvstore.spark.connector.build")
        build_data["artifacts"].append(jars)
        self._built = ExitStack()
        system = os.environ.get("KVSTORE_WHEEL")
        if system is not None:
            if system not in SYSTEMS:
                raise ValueError(f"KVSTORE_WHEEL is one of {', '.join(SYSTEMS)}; it is {system}.")
            target, tag = SYSTEMS[system]
            library = self._kernel(target)
            build_data["force_include"][str(library)] = f"kvstore/kernel/{library.name}"
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the kernel: it is in the wheel."""
        self._built.close()

    def _kernel(self, target: str) -> Path:
        """The kernel for another system, compiled by the C compiler in the package ``ziglang``."""
        from kvstore.kernel.build import build
        from kvstore.kernel.library import library_path

        zig = Path(self.root, ZIG)
        if not zig.exists():
            raise FileNotFoundError("Install the C compiler of these wheels first: make .venv/zig/ready")
        directory = self._built.enter_context(tempfile.TemporaryDirectory())
        os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(zig.parents[1] / "cache"))
        compiler = (str(zig), "-m", "ziglang", "cc", "-target", target)
        return build(Path(directory, library_path().name), ["-g0", "-Werror"], compiler)
