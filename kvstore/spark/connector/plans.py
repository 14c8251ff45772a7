"""Pinned reads, tasks and writes as JSON, for the way through Spark's process; they contain offsets, keys and names."""

from __future__ import annotations

import base64
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

T = TypeVar("T")


def encode(plan: object) -> str:
    """Encode a pinned read, a task or a write."""
    return msgspec.json.encode(plan, enc_hook=encode_schema).decode()


def decode(text: str, kind: type[T]) -> T:
    """Decode what :func:`encode` returned."""
    return msgspec.json.decode(text, type=kind, dec_hook=lambda _, schema: decode_schema(schema))


def encode_schema(schema: Any) -> str:
    """Encode stored columns as text."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Decode stored columns."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
