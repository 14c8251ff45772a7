"""Client of a table: batches rows, numbers its batches and sends them until they are acknowledged."""

from writer.bucket_queue import Restart
from writer.options import WriterOptions
from writer.refused import Refused
from writer.target import Appended, AppendTarget, Identity, TargetTable
from writer.writer import TableWriter

__all__ = [
    "AppendTarget",
    "Appended",
    "Identity",
    "Refused",
    "Restart",
    "TableWriter",
    "TargetTable",
    "WriterOptions",
]
