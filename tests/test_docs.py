"""What the README says is what happens."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.processes import ran

ROOT = Path(__file__).parents[1]


def started(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_readme_example_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    example, spark_example = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (printed,) = re.findall(r"prints\n\n```\n(.*?)```", readme, re.DOTALL)
    example = example.replace("/tmp/kvstore-example", str(tmp_path / "example"))
    for run in (started, ran):
        done = run(example)
        assert done.returncode == 0, done.stderr
        assert done.stdout == printed
        # What it says to do before running it again.
        assert "`rm -r /tmp/kvstore-example`" in readme
        shutil.rmtree(tmp_path / "example")
    assert len(example.strip().splitlines()) <= 20
    compile(spark_example, "README.md", "exec")


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("http") or (page.parent / target).exists(), (page, target)


def test_nothing_is_installed_by_a_name_that_is_another_projects() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "kvstore").rglob("*.py")]:
        assert not re.search(r"pip install [^`\n]*\bkvstore", page.read_text()), page


def test_where_spark_is_imported() -> None:
    assert "it and the demo (`kvstore/cli/demo/spark_reader.py`)" in (ROOT / "docs" / "architecture.md").read_text()
    importing = {
        str(module.relative_to(ROOT))
        for module in (ROOT / "kvstore").rglob("*.py")
        if re.search(r"^ *(from|import) pyspark", module.read_text(), re.MULTILINE)
    }
    assert {name for name in importing if not name.startswith("kvstore/spark/")} == {"kvstore/cli/demo/spark_reader.py"}


def test_errors_that_operations_explain_are_raised() -> None:
    explained = re.findall(r"`(\w+): ([^`]+)`", (ROOT / "docs" / "operations.md").read_text())
    assert len(explained) >= 5
    sources = [path.read_text() for room in ("kvstore", "logformat") for path in (ROOT / room).rglob("*.py")]
    for kind, message in explained:
        assert any(re.search(rf"{kind}\(\s*f?\"{re.escape(message)}", source) for source in sources), (kind, message)


def test_sections_that_sources_name_are_there() -> None:
    named = {
        pair
        for room in ("kvstore", "logformat", "merge_engines", "writer")
        for path in (ROOT / room).rglob("*.py")
        for pair in re.findall(r"docs/([a-z-]+\.md), ([A-Za-z][A-Za-z ]*)[.)]", path.read_text())
    }
    assert len(named) >= 5
    for page, section in named:
        assert re.search(rf"^##+ {section}$", (ROOT / "docs" / page).read_text(), re.MULTILINE), (page, section)


def test_failures_that_ingestion_explains_are_raised() -> None:
    page = (ROOT / "docs" / "ingestion.md").read_text()
    explained = re.findall(r"^\| ([A-Z][^|]+) \|", page.partition("| What is said")[2], re.MULTILINE)
    assert len(explained) == 5
    source = "".join(path.read_text() for path in (ROOT / "kvstore" / "ingest").glob("*.py"))
    for message in explained:
        assert f'"{message}' in source, message


def test_the_example_of_ingestion_runs(tmp_path: Path) -> None:
    example, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "ingestion.md").read_text(), re.DOTALL)
    example = example.replace("/data", str(tmp_path))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("path\nx\n")
    prepared = "import kvstore, pyarrow as pa\n" + (
        f"kvstore.open('{tmp_path}/store').create_table('files', pa.schema([('path', pa.string())]), 'path')\n"
    )
    done = ran(prepared + example)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("a.csv JobStatistics(file_number=1")
