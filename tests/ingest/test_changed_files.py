"""Files that change, vanish or come back after a job has taken them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvstore
from kvstore.errors import CorruptData, TaskFailed
from kvstore.ingest import reading, runner
from tests.ingest.worlds import keys, write


class TestFilesThatAreNotAsTheyWere:
    def dies_with_an_open_task(self, job: kvstore.Job) -> None:
        class Engine:
            def read(self, *_: Any) -> Any:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            job.run(engine=Engine())
        assert job.show().task is not None

    def test_changed_after_it_was_taken(self, store: kvstore.Store, job: kvstore.Job, source: Path) -> None:
        write(source, "a.csv", 0)
        path = write(source, "b.csv", 20)
        self.dies_with_an_open_task(job)
        path.write_text("k,v\n7,7\n")
        with pytest.raises(TaskFailed, match="changed after a task had taken it") as failed:
            job.run()
        assert failed.value.where["path"] == "b.csv"
        assert (keys(store), job.show().offset) == ([], None)
        job.resume()
        job.run()
        assert keys(store) == [*range(12)]

    def test_another_of_the_same_size_is_noticed(self, job: kvstore.Job, source: Path) -> None:
        path = write(source, "a.csv", 0)
        self.dies_with_an_open_task(job)
        path.write_text(path.read_text().replace("a.csv 1", "a.csv X"))
        with pytest.raises(TaskFailed, match="A file changed"):
            job.run()

    def test_vanished(self, store: kvstore.Store, job: kvstore.Job, source: Path) -> None:
        write(source, "a.csv", 0)
        write(source, "b.csv", 20)
        self.dies_with_an_open_task(job)
        (source / "a.csv").unlink()
        with pytest.raises(TaskFailed, match="no longer exists") as failed:
            job.run()
        assert failed.value.where["path"] == "a.csv"
        job.resume()
        job.run()
        assert keys(store) == [*range(20, 32)]

    def test_changed_while_it_is_read(self, job: kvstore.Job, source: Path) -> None:
        path = write(source, "a.csv", 0)

        class Engine:
            def read(self, reader: Callable[..., Any], files: Any) -> Any:
                for file in files:
                    with reader.source.opened(file) as opened:  # type: ignore[attr-defined]
                        opened.read()
                        path.write_text("k,v\n")
                yield reading.FileRows()

        with pytest.raises(TaskFailed, match="A file changed"):
            job.run(engine=Engine())

    def test_gone_after_it_was_applied_is_no_matter(
        self, job: kvstore.Job, source: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(source, "a.csv", 0)

        def dies(*_: Any) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(runner.Taken, "add", dies)
            with pytest.raises(KeyboardInterrupt):
                job.run()
        (source / "a.csv").unlink()
        assert [each.counts for each in job.run().tasks] == [job.show().history[0].counts]
        assert job.show().statistics.loaded_rows == 12

    def test_late(self, store: kvstore.Store, job: kvstore.Job, source: Path, caplog: pytest.LogCaptureFixture) -> None:
        for name in ("a.csv", "c.csv"):
            write(source, name, 0)
        job.run()
        old = write(source.parent, "b.csv", 50)
        os.utime(old, (1, 1))
        old.rename(source / "b.csv")
        write(source, "a.csv", 70)
        write(source, "d.csv", 0)
        done = job.run()
        assert (done.overlooked.late, done.overlooked.changed) == (("b.csv",), ("a.csv",))
        assert [each.first for each in done.tasks] == ["d.csv"]
        assert keys(store) == [*range(12)]
        assert "file 'b.csv' came after the job's offset had passed it" in caplog.text
        assert "file 'a.csv' changed after it was loaded" in caplog.text

    def test_setting_the_offset_shows_what_lies_before_it(self, job: kvstore.Job, source: Path) -> None:
        for name in "abc":
            write(source, f"{name}.csv", 0)
        job.pause()
        job.alter(offset="b.csv")
        job.resume()
        assert not job.run().overlooked
        write(source, "a0.csv", 0)
        assert job.run().overlooked.late == ("a0.csv",)

    @pytest.mark.parametrize("cut", [b'{"version":0,"fi', b'{"version":0,"fi' + bytes(512) + b"}]}\n"])
    def test_without_what_it_remembers_all_before_the_offset_passes_for_taken(
        self, job: kvstore.Job, source: Path, store_path: Path, cut: bytes
    ) -> None:
        write(source, "b.csv", 0)
        job.run()
        (taken,) = store_path.glob("jobs/*/taken.jsonl")
        whole = taken.read_bytes()
        taken.write_bytes(whole + cut)
        write(source, "c.csv", 0)
        assert not job.run().overlooked
        assert taken.read_bytes().startswith(whole + b'{"version":0,"files":[{"path":"c.csv"')
        taken.unlink()
        write(source, "a.csv", 0)
        assert not job.run().overlooked
        write(source, "a1.csv", 0)
        assert job.run().overlooked.late == ("a1.csv",)

    def test_damage_of_what_it_remembers_is_reported_and_calls_no_file_late(
        self, job: kvstore.Job, source: Path, store_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in "abc":
            write(source, f"{name}.csv", 0)
            job.run()
        (taken,) = store_path.glob("jobs/*/taken.jsonl")
        first, second, third = taken.read_bytes().splitlines(keepends=True)
        taken.write_bytes(first + second + third.replace(b"path", b"p\0th"))
        assert not job.run().overlooked
        assert "all files before its offset count as taken" in caplog.text
        write(source, "b1.csv", 0)
        assert job.run().overlooked.late == ("b1.csv",)
        taken.write_bytes(first + second.replace(b"path", b"p\0th") + third)
        with pytest.raises(CorruptData, match="remove it: all files"):
            job.run()
