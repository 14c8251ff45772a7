"""What is stored, or given as an option, never becomes code: nothing that could make it so is in the product.

Looked for in the syntax, so that no name in a text or a comment counts. What Spark itself requires is listed with its
reason, and a reason for what is not there any more is too much.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("kvstore", "kvstore_command", "logformat", "writer", "merge_engines", "pyspark_kvstore")
MODULES = frozenset(
    (
        *("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "copyreg"),
        *("yaml", "ruamel", "jsonpickle", "importlib", "imp", "runpy", "pkgutil", "code", "codeop", "zipimport"),
        *("xmlrpc", "multiprocessing"),  # they pickle what comes over a line
    )
)
CALLS = frozenset(("eval", "exec", "compile", "__import__", "execfile"))
METHODS = frozenset(("system", "popen", "import_module", "load_module", "exec_module", "read_pickle", "to_pickle"))
KEYWORDS = frozenset(("shell", "allow_pickle", "trust_remote_code"))

REASONS = {
    ("kvstore/spark/engine.py", "import pickle"): "what tasks of our own job read comes to the driver as bytes: Spark's"
    " tasks run our code anyhow, and its own protocol pickles partitions",
    ("kvstore/cli/doctor.py", "import importlib"): "find_spec of names that stand there, and versions of packages",
    ("kvstore/cli/doctor.py", "platform.system"): "the name of the system; it runs nothing",
    ("kvstore/disk/platforms.py", "import importlib"): "find_spec of names that stand there: is a package ours",
    ("kvstore/spark/frames.py", "import importlib"): "find_spec of a name that stands there: is pandas installed",
    ("logformat/rows/few/single_record.py", "exec"): "a function for as many columns as a table has, as a dataclass has"
    " some: its source has numbers of columns alone, and their names and values are variables of it",
    ("kvstore/spark/java.py", "import importlib"): "find_spec of a name that stands there: is a Java installed",
}


def suspects(source: str) -> Iterator[str]:
    """What could make code of data."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (f"import {_top(each.name)}" for each in names if _top(each.name) in MODULES)
            case ast.ImportFrom(module=str(module), level=0) if _top(module) in MODULES:
                yield f"import {_top(module)}"
            case ast.Name(id=name) if name in CALLS:
                yield name  # also where it is only handed on
            case ast.Attribute(attr=name, value=ast.Name(id=of)) if name in METHODS or (
                of == "builtins" and name in CALLS
            ):
                yield f"{of}.{name}"
            case ast.Attribute(attr="load", value=ast.Name(id=("np" | "numpy") as of)):
                yield f"{of}.load"
            case ast.keyword(arg=str(name), value=value) if name in KEYWORDS and not _is_false(value):
                yield name


def _top(module: str) -> str:
    return module.partition(".")[0]


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def found() -> set[tuple[str, str]]:
    """All of the product, by file."""
    files = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    assert len(files) > 150, "all rooms are looked at"
    return {(str(path.relative_to(ROOT)), what) for path in files for what in suspects(path.read_text())}


def test_nothing_makes_code_of_data() -> None:
    assert found() == REASONS.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as p",
        "from marshal import loads",
        "from importlib import import_module as get",
        "import importlib.util",
        "import yaml.loader",
        "import multiprocessing.connection",
        "eval(option)",
        "list(map(eval, options))",
        "exec(text, {})",
        "compile(text, '', 'exec')",
        "__import__(name)",
        "builtins.eval(option)",
        "np.load(path, mmap_mode='r')",
        "numpy.load(path)",
        "pandas.read_pickle(path)",
        "f(path, allow_pickle=True)",
        "f(path, allow_pickle=flag)",
        "subprocess.run(command, shell=True)",
        "subprocess.run(command, shell=given)",
        "os.system(command)",
        "os.popen(command)",
        "def f():\n    import shelve",
    ],
)
def test_what_would_is_found(source: str) -> None:
    assert list(suspects(source))


@pytest.mark.parametrize(
    "source", ["import json", "re.compile(p)", "pa.compute.f()", "f(shell=False)", "'import pickle'", "# eval(x)"]
)
def test_what_would_not_is_not(source: str) -> None:
    assert not list(suspects(source))
