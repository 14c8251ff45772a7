"""Runs one target with atheris, which sees what of the code an input reaches: ``python -m tests.fuzz.guided TARGET …``.

What follows the target are options of libFuzzer. The process ends with 0 after its time, and with something else, the
input in a file, after an error that is not allowed, ten seconds of one run, or one that takes more than ``BYTES_MAX``.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.fuzz.runner import BYTES_MAX, ROOT, SECONDS_MAX

MEGABYTES_MAX = 4096
"""Of the process: atheris keeps the arrays that comparisons of arrays come to, a kilobyte a run of some targets."""
_RUNS = re.compile(r"stat::number_of_executed_units: +(\d+)")


def tried(directory: Path, name: str, *, seconds: int) -> int:
    """Run a target for so long; how often it ran.

    Raises:
        AssertionError: An input was bad; it is shown in hexadecimal digits.
    """
    for inner in ("corpus", "found"):
        (directory / inner).mkdir(parents=True)
    options = [
        *(f"-max_total_time={seconds}", f"-timeout={SECONDS_MAX}", f"-rss_limit_mb={MEGABYTES_MAX}"),
        *("-print_final_stats=1", "-max_len=8192", f"-artifact_prefix={directory}/found/", directory / "corpus"),
    ]
    # The peak of memory of a process begins with that of the process that started it: a shell, which has next to none.
    command = ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-m", "tests.fuzz.guided", name, *options]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(directory)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = done.stdout + done.stderr
    bad = [
        f"tests/fuzz/corpus/{name}/{path.name}\n{path.read_bytes().hex()}" for path in (directory / "found").iterdir()
    ]
    assert not done.returncode, "\n".join([*bad, said[-6_000:]])
    assert not bad, "\n".join(bad)
    runs = _RUNS.search(said)
    assert runs is not None, said[-6_000:]
    return int(runs[1])


def _most_bytes() -> int:
    """Memory at its most, asked for so often that it must cost nothing; see ``tried`` for what it begins with."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main() -> None:
    """Begin, and never come back."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: `make proof` does, from requirements-proof.lock.")
    with atheris.instrument_imports(include=["kvstore", "logformat"]):
        from tests.fuzz.targets import ALLOWED, TARGETS

    name, *options = sys.argv[1:]
    target = TARGETS[name]
    corpus = Path(options[-1])
    for number, data in enumerate(target.inputs(name)):
        (corpus / f"seed-{number}").write_bytes(data)

    def once(data: bytes) -> None:
        began = _most_bytes()
        with suppress(*ALLOWED):
            target.run(data)
        taken = _most_bytes() - began
        assert taken <= BYTES_MAX, f"{taken} bytes were taken"

    atheris.Setup([sys.argv[0], *options], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
