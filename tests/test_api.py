"""The public names are those that are documented, and each says what it is."""

from __future__ import annotations

import inspect

import kvstore
import kvstore.errors
import kvstore.shared
import kvstore.testing
import logformat


def test_public_names_are_there_and_documented() -> None:
    for module in (kvstore, kvstore.shared, kvstore.testing, logformat):
        for name in module.__all__:
            assert inspect.getdoc(getattr(module, name)), name


def test_errors_are_all_exported() -> None:
    there = {
        name
        for name, value in vars(logformat.errors).items()
        if inspect.isclass(value) and issubclass(value, kvstore.errors.StoreError)
    }
    assert set(kvstore.errors.__all__) == there


def test_public_methods_of_a_table_say_what_they_raise() -> None:
    for kind in (kvstore.Table, kvstore.Store, kvstore.Bucket, kvstore.Consumer, kvstore.Job):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                assert inspect.getdoc(method), f"{kind.__name__}.{name}"
