"""A machine that sends batches to a store and checks the rules of sequences against the model.

One model for each bucket decides what must be answered. The machine compares answers, and after each step the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvstore import errors
from kvstore.testing.engine_model import EngineModel
from kvstore.testing.model import SEQUENCE_MAX, WINDOW, Answer, Model, Operation, Refused, Row, Rules
from kvstore.testing.sequences import (
    AppliesEpochs,
    NamesWriters,
    Offsets,
    Renumbers,
    Restarts,
    RuleBroken,
    SequenceTarget,
)

Draft = list[tuple[str, int, int]]
"""A batch before its bucket is known: a word, which of the bucket's keys, and a value."""

_SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.int64())])
_KEYS = 3
_IDS_MAX = 5
_BUCKETS_MAX = 4
_INDEX = st.integers(0, 3)  # of a bucket, or of a writer
_DRAFT = st.lists(st.tuples(st.sampled_from(["upsert", "delete"]), st.integers(0, _KEYS - 1), _INDEX), max_size=4)
_DRAFTS = st.lists(_DRAFT, min_size=1, max_size=WINDOW + 2)
_EPOCH = st.lists(_DRAFT, min_size=_BUCKETS_MAX, max_size=_BUCKETS_MAX)
_NUMBERS_EPOCHS = 2**62
"""The writer whose sequences are epochs, in the models."""
_RUN = "epochs"

Errors = type[Exception] | tuple[type[Exception], ...]


class SequenceMachine(RuleBasedStateMachine):
    """Checks the rules of sequences, ``kvstore.testing.RULES``, of any :class:`SequenceTarget`.

    A subclass says how to create a target, and how it differs from a table. Its ``TestCase`` is a test for pytest or
    unittest. A broken rule is a :class:`RuleBroken`, and Hypothesis prints the shortest steps that it finds to it. Any
    error of the target that is none of the three below fails the test as it is.

    Attributes:
        buckets: Number of buckets, at most 4.
        writers: Number of writers without a name that take part from the beginning: 0, 1, … Later ones have larger
            ids, below 100.
        image: ``full``: an update takes two offsets, for the row before and the row after. ``wal``: it takes one.
            ``append``: there are no keys; rows are appended, and never deleted.
        without_writer: Whether batches may come without a writer.
        fences: Whether a batch has an epoch, and a newer one fences those before.
        out_of_order: What the target raises for a batch that is neither the next one nor one of the last five.
        fenced: What it raises for an older epoch.
        refused: What it raises for a row of :meth:`bad_row`.
    """

    buckets: int = 1
    writers: int = 2
    image: Literal["full", "wal", "append"] = "full"
    without_writer: bool = True
    fences: bool = True
    out_of_order: Errors = errors.OutOfOrderSequence
    fenced: Errors = errors.WriterFenced
    refused: Errors = errors.InvalidRequest

    def __init__(self) -> None:
        super().__init__()
        self.target: SequenceTarget
        self.models: list[Model] = []
        self._ids = list(range(self.writers))
        self._epochs = 0

    def create(self) -> SequenceTarget:
        """A new, empty target; called once for each history."""
        raise NotImplementedError("A subclass of SequenceMachine must have `create`, which returns what it tests.")

    def close(self) -> None:
        """Give up ``self.target``, which may be in any state; called at the end of each history."""

    def keys_of(self, bucket: int) -> Sequence[Any]:
        """Three keys whose rows belong to a bucket."""
        return range(bucket * _KEYS, (bucket + 1) * _KEYS)

    def bad_row(self) -> Row | None:
        """A row that the target refuses for its content, such as ``{"v": None}``; None if it takes every row.

        A key that it lacks is added.
        """
        return None

    # What Hypothesis does

    @initialize()
    def begin(self) -> None:
        """Create the target, and the models."""
        if self.image not in ("full", "wal", "append") or not 1 <= self.buckets <= _BUCKETS_MAX or self.writers < 1:
            raise errors.InvalidRequest(
                f"A machine has the image `full`, `wal` or `append`, 1 to {_BUCKETS_MAX} buckets, and a writer.",
                image=self.image,
                buckets=self.buckets,
                writers=self.writers,
            )
        self.target = self.create()
        key = () if self.image == "append" else ("k",)
        rules = Rules(EngineModel("last_row", _SCHEMA, key), image="wal" if self.image == "wal" else "full")
        self.models = [Model(key, rules=rules) for _ in range(self.buckets)]

    @rule(bucket=_INDEX, writer=_INDEX, drafts=_DRAFTS)
    def send_next(self, bucket: int, writer: int, drafts: list[Draft]) -> None:
        """Send some batches of a writer, one after the other."""
        for draft in drafts:
            model, id = self._model(bucket), self._id(writer)
            self._send("next", bucket, id, model.next_sequence(id), self._operations(bucket, draft))

    @rule(bucket=_INDEX, writer=_INDEX, empty=st.booleans())
    def send_again(self, bucket: int, writer: int, empty: bool) -> None:
        """Send the last batches again, or empty ones with their sequences; those before the window must be refused."""
        model, id = self._model(bucket), self._id(writer)
        sent = model.sent.get(id, [])
        for back in range(1, min(len(sent), WINDOW + 2) + 1):
            sequence, _ = sent[-back]
            draft: Draft = [] if empty else [("upsert", 0, back), ("upsert", 1, back)]
            self._send("duplicate" if back <= WINDOW else "gap", bucket, id, sequence, self._operations(bucket, draft))

    @rule(bucket=_INDEX, writer=_INDEX, ahead=st.integers(1, 3), draft=_DRAFT)
    def skip(self, bucket: int, writer: int, ahead: int, draft: Draft) -> None:
        """Send a batch although some before it are missing."""
        model, id = self._model(bucket), self._id(writer)
        sequence = (model.next_sequence(id) + ahead) % (SEQUENCE_MAX + 1)
        self._send("gap", bucket, id, sequence, self._operations(bucket, draft))

    @precondition(lambda self: self.without_writer)
    @rule(bucket=_INDEX, draft=_DRAFT, times=st.integers(1, 2))
    def send_without_writer(self, bucket: int, draft: Draft, times: int) -> None:
        """Send a batch without a writer, maybe twice."""
        for _ in range(times):
            self._send("no writer", bucket, -1, -1, self._operations(bucket, draft))

    @precondition(lambda self: self._bad(0))
    @rule(bucket=_INDEX, writer=_INDEX, draft=_DRAFT)
    def send_bad_row(self, bucket: int, writer: int, draft: Draft) -> None:
        """Send a batch that must be refused for its last row."""
        model, id = self._model(bucket), self._id(writer)
        batch = self._batch(bucket, id, model.next_sequence(id), [*self._operations(bucket, draft), *self._bad(bucket)])
        self._must_refuse("content", self.refused, batch)
        self._compare("content")

    @precondition(lambda self: self.fences)
    @rule(bucket=_INDEX, writer=_INDEX, draft=_DRAFT)
    def send_newer_epoch(self, bucket: int, writer: int, draft: Draft) -> None:
        """Send the next batch of a writer without a name with a higher epoch; then batches of the former one arrive."""
        model, id = self._model(bucket), writer % self.writers
        epoch = model.epochs.get(id, 0) + 1
        self._send("fence", bucket, id, model.next_sequence(id), self._operations(bucket, draft), epoch)
        self.send_older_epoch(bucket, id, draft)

    @precondition(lambda self: any(epoch for model in self.models for epoch in model.epochs.values()))
    @rule(bucket=_INDEX, writer=_INDEX, draft=_DRAFT)
    def send_older_epoch(self, bucket: int, writer: int, draft: Draft) -> None:
        """Send the last batch, and the next one twice, with an epoch that is fenced."""
        model, id = self._model(bucket), self._id(writer)
        epoch, last = model.epochs.get(id, 0), [sequence for sequence, _ in model.sent.get(id, [])[-1:]]
        if epoch:
            for sequence in (*last, model.next_sequence(id), model.next_sequence(id)):
                self._send("fence", bucket, id, sequence, self._operations(bucket, draft), epoch - 1)

    @precondition(lambda self: isinstance(self.target, NamesWriters))
    @rule(name=st.sampled_from(["a", "b"]), bucket=_INDEX, drafts=_DRAFTS)
    def open_writer(self, name: str, bucket: int, drafts: list[Draft]) -> None:
        """Begin a new incarnation of a named writer; a batch of the former one arrives, and then the new one writes."""
        assert isinstance(self.target, NamesWriters)
        id, epoch = self.target.open_writer(name)
        before = max(model.epochs.get(id, -1) for model in self.models)
        if epoch <= before:
            raise RuleBroken("name", f"open_writer({name!r}) gives epoch {epoch}, and before it gave {before}.")
        if id not in self._ids:
            self._ids.append(id)
        for number, model in enumerate(self.models):
            model.fence(id, epoch)
            expected = model.sent[id][-1][0] if id in model.sent else None
            actual = self.target.last_sequence(number, id)
            if actual != expected:
                raise RuleBroken("name", f"last_sequence({number}, {id}) is {actual} instead of {expected}.")
        if epoch:
            late = self._operations(bucket, [("upsert", 0, 0)])
            self._send("fence", bucket, id, self._model(bucket).next_sequence(id), late, epoch - 1)
        self.send_next(bucket, self._ids.index(id), drafts)

    @precondition(lambda self: isinstance(self.target, AppliesEpochs))
    @rule(epochs=st.lists(_EPOCH, min_size=1, max_size=WINDOW + 1))
    def send_epochs(self, epochs: list[list[Draft]]) -> None:
        """Apply some epochs, one after the other."""
        for drafts in epochs:
            self._send_epoch(self._epochs, drafts)
            self._epochs += 1

    @precondition(lambda self: self._epochs)
    @rule(drafts=_EPOCH)
    def send_epochs_again(self, drafts: list[Draft]) -> None:
        """Apply the last epochs again; those before the window must be refused."""
        for back in range(1, min(self._epochs, WINDOW + 2) + 1):
            self._send_epoch(self._epochs - back, drafts)

    @precondition(lambda self: self._epochs)
    @rule(ahead=st.integers(1, 3), drafts=_EPOCH)
    def skip_epoch(self, ahead: int, drafts: list[Draft]) -> None:
        """Apply an epoch although some before it are missing."""
        self._send_epoch(self._epochs + ahead, drafts)

    @precondition(lambda self: isinstance(self.target, AppliesEpochs) and self._bad(0))
    @rule(bucket=_INDEX, drafts=_EPOCH)
    def send_epoch_with_bad_row(self, bucket: int, drafts: list[Draft]) -> None:
        """Apply an epoch that one bucket must refuse."""
        assert isinstance(self.target, AppliesEpochs)
        batches = self._batches(drafts)
        batches[bucket % self.buckets] += self._bad(bucket)
        self._must_refuse(
            "epoch", self.refused, _Call(self.target.append_epoch, batches, name=_RUN, epoch=self._epochs)
        )
        self._compare("epoch")

    @precondition(lambda self: isinstance(self.target, Restarts))
    @rule()
    def restart(self) -> None:
        """Restart the target, and ask for all that it must remember."""
        assert isinstance(self.target, Restarts)
        self.target.restart()
        self._compare("restart")
        for bucket in range(self.buckets):
            for writer in range(len(self._ids)):
                self.send_again(bucket, writer, empty=False)
                self.send_older_epoch(bucket, writer, [("upsert", 0, 0)])

    @precondition(lambda self: isinstance(self.target, Renumbers) and len(self._ids) < _IDS_MAX)
    @rule(left=st.integers(0, 2), bucket=_INDEX, drafts=_DRAFTS)
    def come_to_the_last_sequence(self, left: int, bucket: int, drafts: list[Draft]) -> None:
        """Make the first batch of a new writer look like one of the last before 2^31, and send some more."""
        assert isinstance(self.target, Renumbers)
        id = next(each for each in range(self.writers, _IDS_MAX * 2) if each not in self._ids)
        self._ids.append(id)
        for number, model in enumerate(self.models):
            self._send("next", number, id, 0, self._operations(number, [("upsert", 0, 0)]))
            _, answer = model.sent[id][0]
            model.sent[id] = [(SEQUENCE_MAX - left, answer)]
        self.target.renumber(id, SEQUENCE_MAX - left)
        self.send_next(bucket, self._ids.index(id), drafts)
        self.send_again(bucket, self._ids.index(id), empty=False)

    def teardown(self) -> None:
        """Give up the target."""
        if hasattr(self, "target"):
            self.close()

    # What it is made of

    def _model(self, bucket: int) -> Model:
        return self.models[bucket % self.buckets]

    def _id(self, writer: int) -> int:
        return self._ids[writer % len(self._ids)]

    def _operations(self, bucket: int, draft: Draft) -> list[Operation]:
        keys = self.keys_of(bucket % self.buckets)
        if self.image == "append":
            return [("upsert", {"k": keys[key], "v": value}) for _, key, value in draft]
        return [
            (word, {"k": keys[key], "v": value}) if word == "upsert" else (word, {"k": keys[key]})
            for word, key, value in draft
        ]

    def _batches(self, drafts: list[Draft]) -> list[list[Operation]]:
        return [self._operations(bucket, drafts[bucket]) for bucket in range(self.buckets)]

    def _bad(self, bucket: int) -> list[Operation]:
        row = self.bad_row()
        return [] if row is None else [("upsert", {"k": self.keys_of(bucket % self.buckets)[0], **row})]

    def _batch(
        self, bucket: int, writer: int, sequence: int, operations: list[Operation], epoch: int | None = None
    ) -> _Call:
        if epoch is None:
            epoch = self._model(bucket).epochs.get(writer, 0)
        return _Call(
            self.target.append, operations, bucket=bucket % self.buckets, writer=writer, sequence=sequence, epoch=epoch
        )

    def _send(
        self,
        rule: str,
        bucket: int,
        writer: int,
        sequence: int,
        operations: list[Operation],
        epoch: int | None = None,
    ) -> None:
        """Send a batch to the target and to the model, and compare."""
        model, batch = self._model(bucket), self._batch(bucket, writer, sequence, operations, epoch)
        before = len(model.log)
        try:
            expected = model.apply(operations, writer, sequence, batch.named["epoch"])
        except Refused as refused:
            self._must_refuse(rule, self._kind(refused), batch)
        else:
            has_effect = expected.duplicated or len(model.log) > before
            self._must_answer(
                rule, [expected], batch, lambda answer: [answer], of_offsets=rule if has_effect else "no effect"
            )
        self._compare(rule)

    def _send_epoch(self, epoch: int, drafts: list[Draft]) -> None:
        """Send an epoch to the target and to all models, and compare."""
        assert isinstance(self.target, AppliesEpochs)
        batches = self._batches(drafts)
        call = _Call(self.target.append_epoch, batches, name=_RUN, epoch=epoch)
        try:
            expected = [
                model.apply(batch, _NUMBERS_EPOCHS, epoch) for model, batch in zip(self.models, batches, strict=True)
            ]
        except Refused as refused:  # the first model refuses, as they all would
            self._must_refuse("epoch", self._kind(refused), call)
        else:
            self._must_answer("epoch", expected, call, list, of_offsets="epoch")
        self._compare("epoch")

    def _kind(self, refused: Refused) -> Errors:
        return self.fenced if refused.error is errors.WriterFenced else self.out_of_order

    def _must_refuse(self, rule: str, kind: Errors, call: _Call) -> None:
        wanted = " or ".join(each.__name__ for each in (kind if isinstance(kind, tuple) else (kind,)))
        try:
            answer = call()
        except kind:
            return
        except self._refusals() as error:
            raise RuleBroken(rule, _difference(call, f"raises {error!r}", wanted)) from error
        raise RuleBroken(rule, _difference(call, f"is answered with {_shown(answer)}", wanted))

    def _must_answer(
        self,
        rule: str,
        expected: list[Answer],
        call: _Call,
        listed: Callable[[Any], list[Offsets]],
        *,
        of_offsets: str,
    ) -> None:
        try:
            answers = listed(call())
        except self._refusals() as error:
            raise RuleBroken(rule, _difference(call, f"raises {error!r}", _shown(expected))) from error
        actual = [Answer(each.first_offset, each.last_offset, each.duplicated) for each in answers]
        if actual != expected:
            raise RuleBroken(of_offsets, _difference(call, f"is answered with {_shown(actual)}", _shown(expected)))

    def _refusals(self) -> tuple[type[Exception], ...]:
        kinds = (self.out_of_order, self.fenced, self.refused)
        return tuple(each for kind in kinds for each in (kind if isinstance(kind, tuple) else (kind,)))

    def _compare(self, rule: str) -> None:
        """Compare the logs of all buckets with those of the models."""
        for bucket, model in enumerate(self.models):
            actual = [self._change(*change) for change in self.target.changes(bucket)]
            expected = [
                self._change(offset, "delete" if kind in ("delete", "update_preimage") else "upsert", row)
                for offset, kind, row, _ in model.log
            ]
            if actual != expected:
                same = next(
                    (at for at, pair in enumerate(zip(actual, expected, strict=False)) if pair[0] != pair[1]), None
                )
                at = min(len(actual), len(expected)) if same is None else same
                raise RuleBroken(
                    rule,
                    f"The log of bucket {bucket} has {len(actual)} changes instead of {len(expected)}. From {at} on"
                    f" it has\n{actual[at:]}\ninstead of\n{expected[at:]}",
                )

    def _change(self, offset: int, kind: str, row: Row) -> tuple[int, str, Row]:
        """A change as it is compared; a delete without a row before has a key."""
        return offset, kind, {"k": row["k"]} if kind == "delete" and self.image == "wal" else row


class _Call:
    """A call of the target, and how it is shown."""

    def __init__(self, method: Callable[..., Any], batch: list[Any], **named: Any) -> None:
        self._method = method
        self._batch = batch
        self.named = named

    def __call__(self) -> Any:
        return self._method(self._batch, **self.named)

    def __str__(self) -> str:
        named = "".join(f", {name}={value!r}" for name, value in self.named.items())
        return f"{self._method.__name__}({self._batch!r}{named})"


def _difference(call: _Call, actual: str, expected: str) -> str:
    return f"{call}\n{actual}\ninstead of {expected}"


def _shown(answers: Any) -> str:
    return ", ".join(str(each) for each in answers) if isinstance(answers, list) else str(answers)
