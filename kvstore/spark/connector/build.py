"""Compiles the connector's Scala with the compiler in PySpark's own jars; the same sources give the same bytes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

from kvstore.errors import UnsupportedOperation
from kvstore.spark.connector.jar import jar_path
from kvstore.spark.java import find_java

SOURCES = Path(__file__).with_name("scala")
COMPILER = ("scala-compiler", "scala-library", "scala-reflect", "jline", "jna")
SERVICES = {"META-INF/services/org.apache.spark.sql.sources.DataSourceRegister": "kvstore.spark.Source\n"}
MANIFEST = "META-INF/MANIFEST.MF"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip file can name


def build() -> Path:
    """Build the jar for the installed PySpark, and return its path.

    Raises:
        UnsupportedOperation: There is no Java 17 or newer, PySpark has no Scala compiler, or the sources do not
            compile. An earlier jar stays.
    """
    target = jar_path()
    with tempfile.TemporaryDirectory(prefix="kvstore-connector-") as temporary:
        classes = Path(temporary) / "classes"
        classes.mkdir()
        _compile(classes)
        files = {path.relative_to(classes).as_posix(): path.read_bytes() for path in classes.rglob("*.class")}
        files |= {name: text.encode() for name, text in SERVICES.items()}
    packed = target.with_name(f"new-{target.name}")
    _pack(files, packed)
    packed.replace(target)  # sessions that run keep the file that they have opened
    return target


def _compile(classes: Path) -> None:
    jars = Path(pyspark.__file__).with_name("jars")
    compiler = [path for name in COMPILER for path in sorted(jars.glob(f"{name}-[0-9]*.jar"))]
    if len(compiler) < len(COMPILER):
        raise UnsupportedOperation(
            "PySpark lacks the Scala compiler that builds the connector; install PySpark from its own package.",
            looked_at=str(jars),
        )
    done = subprocess.run(
        [
            *(find_java() / "bin" / "java", "-Xss8m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            *("-cp", ":".join(map(str, compiler)), "scala.tools.nsc.Main", "-nowarn", "-deprecation"),
            *("-cp", ":".join(str(path) for path in sorted(jars.glob("*.jar"))), "-d", classes),
            *sorted(SOURCES.glob("*.scala")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UnsupportedOperation("The connector does not compile.", reason=done.stdout + done.stderr)


def _pack(files: dict[str, bytes], target: Path) -> None:
    with zipfile.ZipFile(target, "w") as archive:
        for name in (MANIFEST, *sorted(files)):
            content = b"Manifest-Version: 1.0\r\n\r\n" if name == MANIFEST else files[name]
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)  # not compressed: that would depend on the library


def main() -> None:
    """Build the jar, for the set-up; print its path, or why there is none, and exit with 1."""
    try:
        sys.stdout.write(f"{build()}\n")
    except UnsupportedOperation as error:
        sys.exit(f'Without the connector of Spark, format("kvstore") is the Python source. {error}')


if __name__ == "__main__":
    main()
