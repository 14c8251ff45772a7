"""Formats of the store, encoded and decoded (docs/format.md). Pure: no file, no clock, no LMDB."""

from logformat.log.batch import BatchHeader, LogBatch, decode_batch, decode_header, encode_batch
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes

__all__ = ["BatchHeader", "ChangeType", "Changes", "LogBatch", "decode_batch", "decode_header", "encode_batch"]
