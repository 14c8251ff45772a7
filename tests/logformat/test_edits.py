from __future__ import annotations

import struct
from itertools import count

import msgspec
import pytest
from crc32c import crc32c

from logformat.catalog.edits import (
    AddReplica,
    AddSchema,
    AllocateWriter,
    AlterColumns,
    AlterJob,
    AlterJobOptions,
    AlterTable,
    BeginCommit,
    BeginEpoch,
    BeginTask,
    CreateJob,
    CreateTable,
    DropConsumer,
    DropJob,
    DropReplica,
    DropTable,
    DropWriter,
    Edit,
    EndCommit,
    EndTask,
    FailTask,
    FindReplica,
    LoseLead,
    OpenWriter,
    PauseJob,
    Payload,
    ReadTask,
    RenameTable,
    ReportReplica,
    ResumeJob,
    SetConsumer,
    TableOptions,
    TellReplica,
    decode,
    encode,
)
from logformat.catalog.jobs import JobOptions, JobStatistics, SourceFile, TaskCounts
from logformat.catalog.replicas import CATALOG, Finding, Shipped, Stream
from logformat.errors import CorruptImage, UnsupportedVersion
from logformat.ids import BucketId, TableId
from tests.logformat.damage import bit_flips, cuts
from tests.support.filled_edits import filled

KINDS = Payload.__subclasses__()
EDIT = Edit(txid=3, epoch=2, time_ms=1_700_000_000_000, payload=DropTable(table_id=7))
HEAD_BYTES = 32


def sealed(op: int, payload: bytes, version: int = 1) -> bytes:
    body = struct.pack("<HHqqq", op, version, 3, 2, 1_700_000_000_000) + payload
    return struct.pack("<I", crc32c(body)) + body


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_edit_with_every_field_set_survives_a_round_trip(kind: type[Payload]) -> None:
    payload = filled(kind, count(100))
    for field in msgspec.structs.fields(kind):
        assert getattr(payload, field.name) != field.default
    edit = Edit(txid=3, epoch=2, time_ms=1_700_000_000_000, payload=payload)
    again = decode(encode(edit))
    assert again == edit
    assert type(again.payload) is kind


@pytest.mark.parametrize("number", [-(2**63), -1, 0, 2**63 - 1])
def test_numbers_of_an_edit_may_have_any_size(number: int) -> None:
    edit = Edit(txid=number, epoch=number, time_ms=number, payload=DropTable(table_id=number))
    assert decode(encode(edit)) == edit


def test_op_codes_are_never_reused() -> None:
    codes = {kind.op: kind for kind in KINDS}
    assert len(codes) == len(KINDS)
    assert codes.items() >= {1: CreateTable, 2: DropTable, 3: AllocateWriter, 4: AddSchema}.items()


OLD_EDITS: list[tuple[int, bytes, Payload]] = [
    (
        1,
        b'{"table_id":7,"name":"t","columns":[{"name":"a","type":"int8","nullable":false}],"primary_key":["a"],'
        b'"buckets":2,"options":{"merge_engine":"first_row","changelog_image":"wal","compression":null}}',
        CreateTable(
            table_id=7,
            name="t",
            columns=[{"name": "a", "type": "int8", "nullable": False}],
            primary_key=["a"],
            buckets=2,
            options=TableOptions(merge_engine="first_row", changelog_image="wal", compression=None),
        ),
    ),
    (
        1,
        b'{"table_id":7,"name":"t","columns":[],"primary_key":null,"buckets":1,"options":{}}',
        CreateTable(table_id=7, name="t", columns=[], primary_key=None, buckets=1, options=TableOptions()),
    ),
    (2, b'{"table_id":7}', DropTable(table_id=7)),
    (3, b'{"writer_id":9}', AllocateWriter(writer_id=9)),
    (4, b'{"table_id":7,"schema_id":2,"columns":[]}', AddSchema(table_id=7, schema_id=2, columns=[])),
    (
        5,
        b'{"table_id":7,"name":"a","writer_id":9,"writer_epoch":2,"kind":"batches","run":null,"first_epoch":null}',
        OpenWriter(table_id=7, name="a", writer_id=9, writer_epoch=2, kind="batches"),
    ),
    (
        5,
        b'{"table_id":7,"name":"a","writer_id":9,"writer_epoch":0,"kind":"epochs","run":"r","first_epoch":3}',
        OpenWriter(table_id=7, name="a", writer_id=9, writer_epoch=0, kind="epochs", run="r", first_epoch=3),
    ),
    (6, b'{"table_id":7,"name":"a"}', DropWriter(table_id=7, name="a")),
    (
        7,
        b'{"table_id":7,"commit_id":"7-0a","writer_id":9,"writer_epoch":2,"sequence":5}',
        BeginCommit(table_id=7, commit_id="7-0a", writer_id=9, writer_epoch=2, sequence=5),
    ),
    (
        7,
        b'{"table_id":7,"commit_id":"7-0a","writer_id":9,"writer_epoch":2,"sequence":5,"staged":"AP8="}',
        BeginCommit(table_id=7, commit_id="7-0a", writer_id=9, writer_epoch=2, sequence=5, staged=b"\0\xff"),
    ),
    (8, b'{"table_id":7,"commit_id":"7-0a"}', EndCommit(table_id=7, commit_id="7-0a")),
    (9, b'{"table_id":7,"name":"a","offsets":[3,0]}', SetConsumer(table_id=7, name="a", offsets=[3, 0])),
    (
        9,
        b'{"table_id":7,"name":"a","offsets":[3],"until_ms":5}',
        SetConsumer(table_id=7, name="a", offsets=[3], until_ms=5),
    ),
    (
        9,
        b'{"table_id":7,"name":"a","offsets":[3],"filter":"0a (v > 1)"}',
        SetConsumer(table_id=7, name="a", offsets=[3], filter="0a (v > 1)"),
    ),
    (10, b'{"table_id":7,"name":"a"}', DropConsumer(table_id=7, name="a")),
    (11, b'{"leader":"l"}', BeginEpoch(leader="l")),
    (12, b'{"name":"a","url":"s3://b/r"}', AddReplica(name="a", url="s3://b/r")),
    (13, b'{"name":"a"}', DropReplica(name="a")),
    (
        14,
        b'{"name":"a","shipped":[{"track":{"table_id":7,"bucket":1},"start":3,"end":9,"snapshots":[4,6]}]}',
        ReportReplica(
            name="a",
            shipped=[Shipped(stream=Stream(TableId(7), BucketId(1)), start=3, end=9, snapshots=[4, 6])],
        ),
    ),
    (
        15,
        b'{"name":"a","checked_ms":5,"findings":['
        b'{"kind":"BAD","track":{"table_id":7,"bucket":1},"start":3,"end":9,"object":"o"},'
        b'{"kind":"MISSING_VERSION","track":{"table_id":-1,"bucket":-1},"start":2,"end":4,"object":null}]}',
        FindReplica(
            name="a",
            checked_ms=5,
            findings=[
                Finding(kind="BAD", stream=Stream(TableId(7), BucketId(1)), start=3, end=9, object="o"),
                Finding(kind="MISSING_VERSION", stream=CATALOG, start=2, end=4),
            ],
        ),
    ),
    (16, b'{"by":4}', LoseLead(by=4)),
    (
        17,
        b'{"name":"a","as_of_ms":5,"shipped":[{"track":{"table_id":-1,"bucket":-1},"start":0,"end":9,"snapshots":[]}]}',
        TellReplica(name="a", as_of_ms=5, shipped=[Shipped(stream=CATALOG, start=0, end=9, snapshots=[])]),
    ),
    (
        20,
        b'{"table_id":7,"name":"a","source":"/in","format":"csv",'
        b'"options":{"max_files":3,"max_bytes":4,"max_filter_ratio":0.5},"offset":"x.csv"}',
        CreateJob(
            table_id=7,
            name="a",
            source="/in",
            format="csv",
            options=JobOptions(max_files=3, max_bytes=4, max_filter_ratio=0.5),
            offset="x.csv",
        ),
    ),
    (
        21,
        b'{"table_id":7,"job_id":9,"task":1,"version":0,"files":[{"path":"a.csv","size":5,"tag":"6"}]}',
        BeginTask(table_id=7, job_id=9, task=1, version=0, files=[SourceFile(path="a.csv", size=5, tag="6")]),
    ),
    (
        22,
        b'{"table_id":7,"job_id":9,"task":1,"counts":{"scanned_rows":3,"loaded_rows":2,"filtered_rows":1,"load_bytes":8}}',
        ReadTask(
            table_id=7,
            job_id=9,
            task=1,
            counts=TaskCounts(scanned_rows=3, loaded_rows=2, filtered_rows=1, load_bytes=8),
        ),
    ),
    (
        23,
        b'{"table_id":7,"job_id":9,"task":1,"version":0,"offset":"a.csv","statistics":{"file_number":1,"file_size":5,'
        b'"scanned_rows":3,"loaded_rows":2,"filtered_rows":1,"load_bytes":8,"succeeded_tasks":1,"failed_tasks":0}}',
        EndTask(
            table_id=7,
            job_id=9,
            task=1,
            version=0,
            offset="a.csv",
            statistics=JobStatistics(
                file_number=1,
                file_size=5,
                scanned_rows=3,
                loaded_rows=2,
                filtered_rows=1,
                load_bytes=8,
                succeeded_tasks=1,
            ),
        ),
    ),
    (
        24,
        b'{"table_id":7,"job_id":9,"task":1,"reason":"r","statistics":{"failed_tasks":1},"resume_ms":5}',
        FailTask(table_id=7, job_id=9, task=1, reason="r", statistics=JobStatistics(failed_tasks=1), resume_ms=5),
    ),
    (25, b'{"table_id":7,"job_id":9,"reason":"r"}', PauseJob(table_id=7, job_id=9, reason="r")),
    (26, b'{"table_id":7,"job_id":9}', ResumeJob(table_id=7, job_id=9)),
    (
        27,
        b'{"table_id":7,"job_id":9,"version":1,"offset":null,"options":{}}',
        AlterJob(table_id=7, job_id=9, version=1, offset=None, options=JobOptions()),
    ),
    (
        32,
        b'{"table_id":7,"job_id":9,"options":{"max_files":2}}',
        AlterJobOptions(table_id=7, job_id=9, options=JobOptions(max_files=2)),
    ),
    (28, b'{"table_id":7,"job_id":9}', DropJob(table_id=7, job_id=9)),
    (29, b'{"table_id":7,"name":"b"}', RenameTable(table_id=7, name="b")),
    (
        30,
        b'{"table_id":7,"options":{"merge_engine":"first_row","compression":null,"retention_ms":5}}',
        AlterTable(table_id=7, options=TableOptions(merge_engine="first_row", compression=None, retention_ms=5)),
    ),
    (
        31,
        b'{"table_id":7,"schema_id":3,"columns":[{"name":"key","type":"int64","nullable":false},'
        b'{"name":null,"type":"string","nullable":true}],"primary_key":["key"],"bucket_key":["key"],"options":{}}',
        AlterColumns(
            table_id=7,
            schema_id=3,
            columns=[
                {"name": "key", "type": "int64", "nullable": False},
                {"name": None, "type": "string", "nullable": True},
            ],
            primary_key=["key"],
            bucket_key=["key"],
            options=TableOptions(),
        ),
    ),
]
"""Op code, JSON as kvstore wrote it once, and what it stands for."""


@pytest.mark.parametrize(("op", "written", "payload"), OLD_EDITS)
def test_old_edits_stay_readable(op: int, written: bytes, payload: Payload) -> None:
    assert decode(sealed(op, written)) == Edit(txid=3, epoch=2, time_ms=1_700_000_000_000, payload=payload)


def test_every_op_code_has_old_edits() -> None:
    assert {op for op, *_ in OLD_EDITS} == {kind.op for kind in KINDS}


class TestRefused:
    def test_every_damage_is_refused(self) -> None:
        for damaged in [*bit_flips(encode(EDIT)), *cuts(encode(EDIT)), encode(EDIT) + b" "]:
            with pytest.raises(CorruptImage):
                decode(damaged)

    @pytest.mark.parametrize("op", [0, max(kind.op for kind in KINDS) + 1, 2**16 - 1])
    def test_an_op_code_of_a_newer_version_is_refused(self, op: int) -> None:
        with pytest.raises(UnsupportedVersion) as refused:
            decode(sealed(op, b'{"table_id":7}'))
        assert (refused.value.where["op"], refused.value.where["txid"]) == (op, 3)

    def test_an_encoding_of_a_newer_version_is_refused(self) -> None:
        with pytest.raises(UnsupportedVersion):
            decode(sealed(2, b'{"table_id":7}', version=2))

    @pytest.mark.parametrize(
        ("op", "payload"),
        [
            (2, b'{"table_id":7,"new":1}'),
            (1, b'{"table_id":7,"name":"t","columns":[],"primary_key":null,"buckets":1,"options":{"new":1}}'),
            (1, b'{"table_id":7,"name":"t","columns":[],"primary_key":null,"buckets":1,"options":{"compression":"x"}}'),
            (2, b'{"table_id":"7"}'),
            (2, b"{}"),
        ],
        ids=["a field", "an option", "a value", "a type", "a missing field"],
    )
    def test_fields_of_a_newer_version_are_refused(self, op: int, payload: bytes) -> None:
        with pytest.raises(UnsupportedVersion) as refused:
            decode(sealed(op, payload))
        assert refused.value.where["op"] == op

    @pytest.mark.parametrize("payload", [b"", b'{"table_id":7} 1', b'{"table_id":7,"\xff":1}'])
    def test_a_payload_that_is_not_json_is_refused(self, payload: bytes) -> None:
        with pytest.raises((CorruptImage, UnsupportedVersion)):
            decode(sealed(2, payload))
