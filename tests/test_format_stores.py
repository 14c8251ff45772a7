"""The files of a store are those in docs/format.md, and are read with what it says and nothing else."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import re
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kvstore
from kvstore.checkpoint import worker
from kvstore.checkpoint.messages import Task
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.meta.image import items_of
from kvstore.read.changelog import CHANGE_FIELDS
from kvstore.sending.slots import Slots
from kvstore.spark import KvStoreSource
from kvstore.spark.types import arrow_schema, spark_schema
from kvstore.spark.write.sink import KvStoreWriter
from kvstore.spark.write.staged import OLD_SECONDS
from logformat import checksum, paths
from logformat.catalog import edits, image, jobs, store_file
from logformat.ids import BucketId, Epoch, JobId, Offset, TableId, Txid, WriterId
from logformat.log import batch, writer_entry
from logformat.log.change import ChangeType
from logformat.rows import schema as schemas
from tests.documents import DIGITS, FORMAT, OTHERS, Arithmetic, covered, names_in, plain
from tests.support.commits import refuse_ends_of_commits

# Names of files


def test_files_have_the_names_in_the_table(tmp_path: Path) -> None:
    (table,) = FORMAT.tables("Files and names")
    patterns = {}
    (digits,) = re.findall(r"table's id, `-`, and (\d+) hexadecimal digits", FORMAT.prose)
    (said,) = re.findall(r"\* `([^`]+)/` holds `([^`]+)`, `([^`]+)` and `([^`]+)`, see", FORMAT.prose)
    for file in said[1:]:
        pattern = re.escape(f"{said[0]}/{file}").replace("<offset>", r"\d{20}")
        patterns[file] = re.compile(re.sub("<table>|<bucket>", lambda _: r"\d+", pattern))
    for name, example, _ in table:
        pattern = re.escape(plain(name)).replace("<table>", r"\d+").replace("<bucket>", r"\d+")
        pattern = pattern.replace("<job>", r"\d+").replace("<number>", r"\d+")
        pattern = pattern.replace("<commit>", rf"\d+-[0-9a-f]{{{digits}}}")
        pattern = pattern.replace("<task>", rf"[0-9a-f]{{{digits}}}-\d+-\d+")
        patterns[plain(name)] = re.compile(re.sub("<base>|<txid>", lambda _: r"\d{20}", pattern))
        assert patterns[plain(name)].fullmatch(plain(example))
    store = tmp_path / "store"
    write_a_store(store)
    leave_a_commit(store)
    leave_a_task(store)
    with kvstore.open(store) as opened:
        opened.add_replica(str(tmp_path / "replica")).ship()
    leave_a_job(store, tmp_path / "in")
    slots = Slots(store, Files(), lambda: WriterId(9))
    slots.other_than(set())
    slots.close()
    take_an_image(store, 1)
    copy = store.with_name("copy")
    kvstore.follow(str(tmp_path / "replica"), copy).close()
    os.link(copy / paths.FOLLOWING, store / paths.FOLLOWING)
    Files().publish(store / paths.TAKING, b"")
    Files().publish(paths.wanted_file(store, TableId(1)), b"")  # last: an open store removes it
    found = [path for path in store.rglob("*") if path.is_file()]
    matched = {name for path in found for name in patterns if patterns[name].fullmatch(str(path.relative_to(store)))}
    assert matched == set(patterns)
    assert all(any(p.fullmatch(str(path.relative_to(store))) for p in patterns.values()) for path in found)
    assert all("tables" not in example or "tables/7/" in example for _, example, _ in table)
    modes = [{f"{path.stat().st_mode & 0o7777:04o}" for path in store.rglob("*") if path.is_dir() == d} for d in (0, 1)]
    assert modes == [{mode} for mode in re.findall(r"Files have mode (\d+), directories (\d+)\.", FORMAT.prose)[0]]
    versions = re.findall(r"data version (\d+), as of LMDB (\d+)\.(\d+)", FORMAT.prose)[0]
    found_version = struct.unpack_from("<I", (store / paths.JOURNAL / "data.mdb").read_bytes(), 20)
    assert tuple(map(int, versions)) == (*found_version, *lmdb.version()[:2])


def test_the_code_makes_the_names_in_the_table() -> None:
    (table,) = FORMAT.tables("Files and names")
    examples = {plain(name).rpartition(".")[2].rpartition("/")[2]: Path(plain(example)) for name, example, _ in table}
    bucket = paths.bucket_directory(Path(), TableId(7), BucketId(2))
    log, base = bucket / paths.LOG, Offset(100)
    assert examples["STORE"] == Path(paths.STORE_FILE)
    assert examples["FOLLOWING"] == paths.FOLLOWING
    assert examples["TAKING"] == paths.TAKING
    assert Path("tables/7/COMMIT") == paths.commit_lock(Path(), TableId(7))
    assert Path("tables/7/TABLE") == paths.table_file(Path(), TableId(7))
    assert f"`tables/<table>/{paths.dropped_file(Path(), TableId(7)).name}` is the" in FORMAT.prose
    assert Path("tables/7/WRITING") == paths.writing_file(Path(), TableId(7))
    assert Path("meta/image/image.00000000000000050000") == paths.image_file(paths.IMAGES, Txid(50_000))
    assert paths.image_txid("image.00000000000000050000") == 50_000
    assert paths.image_txid(paths.UNFINISHED_IMAGE) is None
    assert f"`{paths.IMAGES}/{paths.UNFINISHED_IMAGE}` is an image being written" in FORMAT.text
    assert f"`{paths.IMAGES}/{paths.LOCK_FILE}` is such a file too" in FORMAT.text
    assert paths.lost_directory(Path(), Txid(5)).parts == (paths.LOST, f"{5:020d}")
    assert f"`{paths.LOST}/<txid>/` holds what a recovery" in FORMAT.prose
    assert f"to `{paths.UNFINISHED_JOURNAL}`" in FORMAT.prose
    assert Path("tables/7/WANTED") == paths.wanted_file(Path(), TableId(7))
    assert examples["batches"] == paths.staged_file(Path(), examples["batches"].stem)
    assert paths.staged_commit(examples["batches"].name, TableId(7)) == examples["batches"].stem
    assert paths.staged_commit(examples["batches"].name, TableId(8)) is None
    assert examples["rows"] == paths.task_file(Path(), "00112233445566778899aabbccddeeff", 3, 17)
    assert paths.is_task_file(examples["rows"].name)
    assert not paths.is_task_file(examples["batches"].name)
    assert examples["LOCK"] == bucket / paths.LOCK_FILE
    assert examples["PUBLISHED"] == bucket / paths.PUBLISHED_FILE
    assert examples["log"] == paths.segment_file(log, base)
    assert examples["index"] == paths.sparse_index_file(log, base)
    assert examples["writers"] == paths.writers_file(log, base)
    assert f"`{paths.JOURNAL}/data.mdb`" in FORMAT.text
    assert f"`{paths.REBUILT_INDEX}/` holds the same files as `{paths.INDEX}/`" in FORMAT.text
    assert f"A name that ends in `{paths.TEMPORARY}`" in FORMAT.text
    assert paths.snapshot_directory(Path(), Offset(103)) == Path(paths.SNAPSHOTS, f"{103:0{DIGITS}d}")
    files = [paths.SNAPSHOT_ROWS, paths.SNAPSHOT_WRITERS, paths.SNAPSHOT_MANIFEST]
    assert "holds {}, {} and {}".format(*(f"`{name}`" for name in files)) in FORMAT.prose


# A store read with what the document says


def write_a_store(path: Path) -> None:
    """A store with a table, three segments, a writer and a snapshot."""
    with kvstore.open(path, segment_bytes_max=1000) as store:
        table = store.create_table("people", OTHERS, "name")
        _, writer = store.new_writer_id(), store.new_writer_id()
        for sequence in range(7):
            changes = kvstore.Changes.of(
                [("upsert", {"name": f"n{sequence % 5}", "age": sequence, "ok": None})], table.schema
            )
            table.bucket(0).apply(changes, writer, sequence)
        table.delete("n0")
        table.snapshot()


def leave_a_commit(path: Path) -> None:
    """A commit whose process died when all buckets had it."""
    with kvstore.open(path) as store:
        table = store.create_table("pets", OTHERS, "name", buckets=3)
        changes = kvstore.Changes.of(
            [*(("upsert", {"name": f"n{n}", "age": n, "ok": None}) for n in range(9)), ("delete", {"name": "n0"})],
            table.schema,
        )
        with pytest.MonkeyPatch.context() as patch:
            refuse_ends_of_commits(patch)
            table.apply_epoch(changes, "w", 4, "r")


def take_an_image(path: Path, txid: int) -> Path:
    store = store_file.decode((path / paths.STORE_FILE).read_bytes())
    task = Task(epoch=Epoch(4), store=str(path), store_id=store.store_id, txid=Txid(txid), seconds=60)
    made = worker.run(task, Files(), SystemClock())
    return paths.image_file(path / paths.IMAGES, made.txid)


def leave_a_job(path: Path, source: Path) -> int:
    """A job that has taken a file, and left out a row of it; its id."""
    source.mkdir()
    (source / "a.csv").write_text("name,age,ok\nx,1,\ny,old,\n")
    with kvstore.open(path) as store:
        job = store.create_job("j", source=source, format="csv", table="people", max_filter_ratio=0.5)
        job.run()
        return job.id


def test_files_of_a_job_are_what_the_document_says(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    directory = paths.job_directory(tmp_path / "s", JobId(leave_a_job(tmp_path / "s", tmp_path / "in")))
    (line,) = map(json.loads, (directory / paths.TAKEN_FILE).read_text().splitlines())
    status = (tmp_path / "in" / "a.csv").stat()
    assert line == {"version": 0, "files": [{"path": "a.csv", "size": status.st_size, "tag": str(status.st_mtime_ns)}]}
    (left_out,) = map(json.loads, paths.rejected_file(directory, 1).read_text().splitlines())
    assert list(left_out) == ["file", "row", "reason"]
    assert (left_out["file"], left_out["row"]) == ("a.csv", 2)


def test_a_job_in_an_image_is_what_the_document_says(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    leave_a_job(tmp_path / "s", tmp_path / "in")
    with kvstore.open(tmp_path / "s") as store:
        state = store.runtime.catalog()
    (found,) = (item for item in items_of(state) if isinstance(item, image.Job))
    job = json.loads(msgspec.json.encode(found))["job"]
    of_job, of_task, of_history = re.findall(
        r"`job` is an object with (.*?)\. `task` is null, or has (.*?)\. Each of `history` has (.*?)\.", FORMAT.prose
    )[0]
    (totals,) = re.findall(r"`statistics` is what a job has done altogether: (.*?)\. They are totals", FORMAT.prose)
    (counts,) = re.findall(r"`counts` has (.*?) of the task", FORMAT.prose)
    (options,) = re.findall(r"`options` of a job has (.*?), the share of rows", FORMAT.prose)
    assert list(job) == quoted(of_job)
    assert list(job["history"][0]) == quoted(of_history)
    assert list(job["options"]) == quoted(options)
    assert set(job["history"][0]["counts"]) == set(quoted(counts))
    assert set(job["statistics"]) == {*quoted(counts), *quoted(totals)} - {"counts"}
    assert [field.name for field in msgspec.structs.fields(jobs.OpenTask)] == quoted(
        of_task.replace("`counts` (null before `ReadTask`)", "`counts`")
    )


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def leave_a_task(path: Path) -> list[tuple[int, pa.RecordBatch]]:
    """Rows that a task has staged, by bucket."""
    schema = spark_schema(pa.schema([*CHANGE_FIELDS, *OTHERS]))
    writer = KvStoreSource({"path": str(path), "table": "people"}).writer(schema, False)
    assert isinstance(writer, KvStoreWriter)
    rows = [
        {
            "name": f"n{n}",
            "age": n,
            "_change_type": "delete" if n % 2 else "insert",
            "_bucket": 2,
            "_commit_timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
            "_log_offset": 9 - n,
        }
        for n in range(4)
    ]
    staged = writer.job.stage(iter([pa.RecordBatch.from_pylist(rows, arrow_schema(schema))]), 3, 17, None)
    with pa.ipc.open_file(staged.file) as reader:
        return [(bucket, reader.get_batch(place)) for place, bucket in enumerate(staged.buckets)]


def test_rows_of_a_task_are_what_the_document_says(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    ((bucket, batch),) = leave_a_task(tmp_path / "s")
    assert bucket == 0
    assert batch.schema.names == [*OTHERS.names, "_change_type", "_bucket", "_commit_timestamp", "_log_offset"]
    assert batch.schema.types[-4:] == [pa.uint8(), pa.int32(), pa.timestamp("us", "UTC"), pa.int64()]
    assert batch.column("_change_type").to_pylist() == [ChangeType.INSERT, ChangeType.DELETE] * 2
    assert batch.column("_log_offset").to_pylist() == [9, 8, 7, 6]
    (seven,) = re.findall(r"older than (\w+) days belongs to a task", FORMAT.prose)
    assert (seven, OLD_SECONDS) == ("seven", 7 * 24 * 3600)


def test_staged_batches_are_what_the_document_says(tmp_path: Path) -> None:
    leave_a_commit(tmp_path / "s")
    (path,) = (tmp_path / "s" / "staging").glob("*")
    data, operations, buckets = path.read_bytes(), [], []
    while data:
        found = read_fields("Header of magic 3", data[: batch.decode_header(data).size])
        assert (found["table_id"], found["schema_id"], found["writer_epoch"], found["batch_sequence"]) == (1, 1, 0, 0)
        assert not any(found[name] for name in ("base_offset", "commit_timestamp", "durable_end", "attributes"))
        rows = batch.decode_batch(data, OTHERS)
        operations += zip(rows.rows["name"].to_pylist(), rows.change_types.tolist(), strict=True)
        buckets.append(found["bucket_id"])
        data = data[found["length"] + batch.LOG_OVERHEAD :]
    assert buckets == [0, 1, 2]
    assert sorted(operations) == sorted([("n0", ChangeType.DELETE), *((f"n{n}", ChangeType.INSERT) for n in range(9))])


def pairs_of(path: Path, name: str | None = None) -> dict[bytes, bytes]:
    with lmdb.open(str(path), readonly=True, max_dbs=1, create=False) as environment:
        database = environment.open_db(name.encode()) if name else None
        with environment.begin(db=database) as transaction:
            return {bytes(key): bytes(value) for key, value in transaction.cursor()}


def read_fields(heading: str, data: bytes) -> dict[str, Any]:
    """What a table of fields makes of bytes; where there is a checksum, it is checked."""
    if "Checksum `crc`:" in FORMAT.sections[heading] and heading != "Writer entry":
        crc, bytes_covered = covered(heading)(data)
        assert checksum.crc32c(bytes_covered) == crc
    return {field.name: field.in_bytes(data) for field in FORMAT.fields(heading)}


def test_the_journal_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    journal = tmp_path / "s" / paths.JOURNAL
    assert list(pairs_of(journal)) == [f"{1:020d}".encode()]
    assert f"its first txid in {len(b'%020d' % 1)} decimal digits" in FORMAT.prose
    ops = {int(op): name for op, name, *_ in FORMAT.tables("Payloads")[0]}
    found = []
    for key, value in pairs_of(journal, f"{1:020d}").items():
        head = read_fields("Catalog edit", value)
        assert struct.unpack(">q", key) == (head["txid"],)
        start = FORMAT.fields("Catalog edit")[-1]
        found.append((ops[head["op"]], json.loads(value[start.position + start.size :])))
    assert [name for name, _ in found] == ["CreateTable", "AllocateWriter", "AllocateWriter"]
    assert (found[0][1]["name"], found[2][1]) == ("people", {"writer_id": 2**62 + 1})


def test_an_image_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    with kvstore.open(tmp_path / "s") as store:
        store.table("people").apply_epoch(kvstore.Changes.of([("delete", {"name": "n1"})], OTHERS), "w", 4, "r")
        store.consumer("c").commit("people", {0: 3})
        store.table("people").subscribe("b", "latest", follow=False).close()
        store.runtime.journal.append(lambda _: edits.AddReplica(name="r", url="file:///backup"))
        store.create_table("renamed", OTHERS, "name")
        store.rename_columns("renamed", {"name": "id"})
        state = store.runtime.catalog()
    path = take_an_image(tmp_path / "s", state.txid)
    data, position, found = path.read_bytes(), 0, []
    while position < len(data):
        length, crc = struct.unpack_from("<II", data, position)
        body = data[position + 8 : position + 8 + length]
        assert checksum.crc32c(data[position : position + 4] + body) == crc
        found.append((position, json.loads(body)))
        position += 8 + length
    assert position == len(data)
    kinds = {kind: names_in(fields) for kind, fields, _ in FORMAT.tables("Catalog image")[1]}
    altered = [record.pop("altered", None) for _, record in found]
    assert altered == [True if record.get("schema_id") == 2 else None for _, record in found]
    filters = {record["name"]: record.pop("filter", None) for _, record in found if record["kind"] == "consumer"}
    assert filters == {"b": "", "c": None}
    assert all(
        list(record) == ["kind", *(name for name in kinds[record["kind"]] if name not in ("altered", "filter"))]
        for _, record in found
    )
    (_, head), *_, (place, foot) = found
    assert (head["kind"], foot["kind"], foot["crc32c"]) == ("head", "foot", checksum.crc32c(data[:place]))
    assert f"a `format` other than {head['format']}," in FORMAT.prose
    assert (head["txid"], head["epoch"], path.name) == (state.txid, 4, f"image.{state.txid:020d}")
    counted = Counter(record["kind"] for _, record in found[1:-1])
    assert head["counts"] == {kind: counted[kind] for kind in kinds if kind not in ("head", "foot")}
    order = list(dict.fromkeys(record["kind"] for _, record in found))
    assert order == [kind for kind in kinds if kind not in ("former", "commit", "job")]
    assert found[1][1]["name"] == "people"
    assert schemas.from_json(found[2][1]["columns"]) == OTHERS.remove(0).insert(0, pa.field("name", pa.string(), False))
    assert msgspec.json.decode(json.dumps(found[-3][1]), type=image.Consumer).offsets == (3,)
    structs = {kind.__name__.lower(): kind for kind in (image.Head, *image.ITEMS, image.Foot)}
    assert kinds == {name: [field.name for field in msgspec.structs.fields(kind)] for name, kind in structs.items()}


def test_the_index_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    bucket = paths.bucket_directory(tmp_path / "s", TableId(1), BucketId(0))
    pairs = pairs_of(bucket / paths.INDEX)
    keys = [key for key, _ in FORMAT.tables("Index")[0] if "secondary index" not in key]
    kinds = [re.findall(r"`(\d\d)`", key)[0] for key in keys]
    assert sorted({key[:1].hex() for key in pairs}) == kinds
    state_key, writer_kind, row_kind = (bytes.fromhex(kind) for kind in kinds)
    state = read_fields("State record", pairs[state_key])
    (writer,) = (key for key in pairs if key.startswith(writer_kind))
    assert writer == writer_kind + struct.pack(">q", 2**62 + 1)
    assert f"the key of writer 5 is `{(writer_kind + struct.pack('>q', 5)).hex(' ')}`" in FORMAT.text
    entry = read_fields("Writer entry", pairs[writer])
    assert entry["batch_count"] == writer_entry.WINDOW
    arithmetic, digest, found = Arithmetic(), 0, 0
    for key, value in pairs.items():
        if key.startswith(row_kind):
            row_hash = arithmetic.sums(key, value)[2]
            row = read_fields("Row", value)
            assert (row["checksum"], row["schema_id"]) == (row_hash % 2**32, 1)
            digest, found = (digest + row_hash) % 2**64, found + 1
    assert (state["digest"], state["row_count"], state["applied_offset"]) == (digest, found, 10)


def test_entries_can_be_read_with_the_document(tmp_path: Path) -> None:
    long = "x" * 600
    rows = [("n1", "a@x", 7), ("n2", None, -1), ("n3", "a@x", None), ("n4", long, 7)]
    with kvstore.open(tmp_path / "s") as store:
        columns = {"name": "string", "mail": "string", "age": "int16"}
        table = store.create_table("t", columns, "name", indexes={"by_mail": ["mail", "age"], "by_age": "age"})
        table.upsert([dict(zip(columns, row, strict=True)) for row in rows])
        store.drop_index("t", "by_age")
        table.upsert([{"name": "n5", "mail": "", "age": 0}])
        table.delete("n5")
    pairs = pairs_of(paths.bucket_directory(tmp_path / "s", TableId(1), BucketId(0)) / paths.INDEX)
    record_kind, entry_kind = (
        bytes.fromhex(re.findall(r"`(01 8\d)`", key)[0])
        for key, _ in FORMAT.tables("Index")[0]
        if "secondary index" in key
    )
    (record,) = (key for key in pairs if key.startswith(record_kind))
    assert record == record_kind + struct.pack(">I", 1)
    found = read_fields("Record of entries", pairs[record])
    state = read_fields("State record", pairs[b"\0"])
    assert (found["index_id"], found["entry_count"], found["applied_offset"]) == (1, 4, state["applied_offset"])

    def code(mail: str | None, age: int | None) -> bytes:
        mail_code = b"\1" if mail is None else b"\2" + mail.encode() + b"\0"
        return mail_code + (b"\1" if age is None else b"\2" + struct.pack(">H", age + 2**15))

    expected = {}
    for name, mail, age in rows:
        codes, key = code(mail, age), name.encode() + b"\0"
        if mail == long:
            short, whole = codes[: kept_bytes("CODE_BYTES_MAX")], b"\2" + key
            expected[short + hashlib.sha256(codes + whole).digest()[:16]] = b"\xff\xff" + whole
        else:
            expected[codes + key] = struct.pack("<H", len(codes))
    head = entry_kind + struct.pack(">I", 1)
    assert {key: value for key, value in pairs.items() if key.startswith(entry_kind)} == {
        head + key: value for key, value in expected.items()
    }


def kept_bytes(name: str) -> int:
    """A limit in the document."""
    (value,) = re.findall(rf"\.{name}` \| (\d+) bytes", FORMAT.text)
    return int(value)


def test_the_log_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    bucket = paths.bucket_directory(tmp_path / "s", TableId(1), BucketId(0))
    segments = {int(path.stem): path.read_bytes() for path in sorted((bucket / paths.LOG).glob("*.log"))}
    assert len(segments) > 2
    expected, changes = 0, 0
    heads = {base: read_fields("Segment", data[:64]) for base, data in segments.items()}
    ends = [head["previous_end"] for head in heads.values()][1:]
    for (base, data), end in zip(segments.items(), [*ends, None], strict=True):
        assert (base, heads[base]["base_offset"], heads[base]["table_id"]) == (expected, expected, 1)
        position = 64
        while position < (len(data) if end is None else end):
            size = struct.unpack_from("<i", data, position + 8)[0] + 12
            header = read_fields("Header of magic 3", data[position : position + size])
            assert (header["base_offset"], header["magic"], size % 64) == (expected, 3, 0)
            expected += header["last_offset_delta"] + 1
            changes += header["record_count"]
            position += size
    assert (expected, changes) == (10, 10)


def test_a_snapshot_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    bucket = paths.bucket_directory(tmp_path / "s", TableId(1), BucketId(0))
    (directory,) = (bucket / paths.SNAPSHOTS).iterdir()
    manifest = json.loads((directory / "manifest.json").read_bytes())
    for name, expected in manifest["files"].items():
        data = (directory / name).read_bytes()
        assert expected == {"bytes": len(data), "crc32c": checksum.crc32c(data)}
    index = pairs_of(bucket / paths.INDEX)
    state = read_fields("State record", index[b"\0"])
    for name in ("table_id", "bucket_id", "applied_offset", "row_count", "last_timestamp", "next_count"):
        assert manifest[name] == state[name]
    assert int(manifest["digest"], 16) == state["digest"]
    assert (manifest["log_base"], manifest["log_position"]) == (state["synced_base"], state["synced_position"])
    rows = pq.read_table(directory / "rows.parquet").to_pylist()
    assert [row.pop("_schema_id") for row in rows] == [1] * state["row_count"]
    assert rows == [{"name": f"n{n}", "age": age, "ok": None} for n, age in ((1, 6), (2, 2), (3, 3), (4, 4))]
    (writer,) = json.loads((directory / "writers.json").read_bytes())["writers"]
    assert [batch[0] for batch in writer["batches"]] == [2, 3, 4, 5, 6]
