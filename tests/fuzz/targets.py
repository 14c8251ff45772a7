"""All targets by name: each a function of bytes, and bytes to begin with.

A target ends well, or with an error that tells its caller what to do; any other one is a bug, and so is a process that
ends, takes memory, or does not come back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kvstore.errors import CorruptData, InvalidRequest
from tests.fuzz import (
    catalog_targets,
    kernel_targets,
    log_targets,
    replica_targets,
    request_targets,
    segment_targets,
    write_targets,
)

ALLOWED = (CorruptData, InvalidRequest)
"""UnsupportedVersion is a CorruptData."""
CORPUS = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True)
class Target:
    """What is fuzzed.

    Attributes:
        share: Of the runs, for one that is as fast as most; slow ones get fewer.
        seconds: Of a nightly run.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    share: float
    seconds: int

    def inputs(self, name: str) -> list[bytes]:
        """Seeds, and what was trouble once."""
        return [*self.seeds(), *(path.read_bytes() for path in sorted((CORPUS / name).glob("*")))]


TARGETS = {
    "batch_header": Target(log_targets.batch_header, log_targets.header_seeds, 4, 20),
    "batch": Target(log_targets.batch, log_targets.batch_seeds, 1, 40),
    "record": Target(log_targets.record, log_targets.record_seeds, 1, 20),
    "small_records": Target(log_targets.small_records, log_targets.small_records_seeds, 3, 15),
    "writers": Target(log_targets.writers, log_targets.writers_seeds, 3, 20),
    "edits_in_order": Target(catalog_targets.edits_in_order, catalog_targets.edits_seeds, 0.5, 30),
    "catalog_image": Target(catalog_targets.catalog_image, catalog_targets.image_seeds, 0.5, 30),
    "small_files": Target(catalog_targets.small_files, catalog_targets.small_files_seeds, 3, 20),
    "object_name": Target(replica_targets.object_name, replica_targets.object_name_seeds, 4, 15),
    "replica_object": Target(replica_targets.replica_object, replica_targets.replica_object_seeds, 1, 30),
    "listing": Target(replica_targets.listing, replica_targets.listing_seeds, 0.5, 20),
    "snapshot_rows": Target(replica_targets.snapshot_rows, replica_targets.snapshot_rows_seeds, 0.1, 15),
    "spark_options": Target(request_targets.spark_options, request_targets.spark_options_seeds, 3, 15),
    "names": Target(request_targets.names, request_targets.names_seeds, 4, 10),
    "file_names": Target(request_targets.file_names, request_targets.file_names_seeds, 3, 10),
    "log_segment": Target(segment_targets.log_segment, segment_targets.log_segment_seeds, 0.3, 20),
    "index_pages": Target(kernel_targets.index_pages, kernel_targets.index_pages_seeds, 3, 20),
    "scanned_pages": Target(kernel_targets.scanned_pages, kernel_targets.index_pages_seeds, 0.5, 20),
    "native_rows": Target(kernel_targets.native_rows, kernel_targets.native_rows_seeds, 1, 20),
    "native_pairs": Target(kernel_targets.native_pairs, kernel_targets.native_pairs_seeds, 1, 20),
    "native_writes": Target(write_targets.native_writes, write_targets.native_writes_seeds, 0.5, 20),
    "native_few": Target(write_targets.native_few, write_targets.native_few_seeds, 0.5, 20),
    "rebuild": Target(segment_targets.rebuild, segment_targets.rebuild_seeds, 0.003, 15),
}
