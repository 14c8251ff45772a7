"""Types of the store's numbers: one type and one word for each."""

from typing import NewType

Offset = NewType("Offset", int)
"""Number of a place in a bucket's log. A change record takes one, and so does an empty batch."""
Position = NewType("Position", int)
"""Number of a byte in a file."""
Sequence = NewType("Sequence", int)
"""Number of a batch of one writer in one bucket: 0, 1, … 2^31-1, then 0 again."""
Txid = NewType("Txid", int)
"""Number of an edit of the catalog, from 1."""
Epoch = NewType("Epoch", int)
"""Number of an incarnation of a leader or a named writer; lower ones are fenced."""
WriterId = NewType("WriterId", int)
TableId = NewType("TableId", int)
BucketId = NewType("BucketId", int)
SchemaId = NewType("SchemaId", int)
JobId = NewType("JobId", int)
"""Id of an ingestion job: the txid of the edit that created it."""

NO_WRITER = WriterId(-1)
NO_SEQUENCE = Sequence(-1)
GIVEN_WRITERS = WriterId(2**62)
"""The catalog allocates writer ids from here on; callers may choose lower ones themselves."""
SEQUENCE_MAX = Sequence(2**31 - 1)
OFFSET_MAX = Offset(2**63 - 1)


def next_sequence(sequence: Sequence) -> Sequence:
    """The sequence after this one: 0 after none (-1) and after 2^31-1."""
    return Sequence(0) if sequence == SEQUENCE_MAX else Sequence(sequence + 1)
