"""Tests of tables, writers and sequences by properties: models, strategies and machines for Hypothesis.

Needs Hypothesis, which the extra ``testing`` installs.
"""

try:
    from kvstore.testing.engine_model import EngineModel
    from kvstore.testing.histories import Batch, History, changes, histories
    from kvstore.testing.linearizability import (
        HistoryModel,
        Operation,
        Part,
        Recorder,
        Verdict,
        certify,
        read_history,
    )
    from kvstore.testing.machine import SequenceMachine
    from kvstore.testing.model import Answer, Model, Refused, Rules
    from kvstore.testing.network import MOVES, LossyTarget, ModelTarget, Network, Reply, Request, moves
    from kvstore.testing.sequences import (
        RULES,
        WRITER_RULES,
        AppliesEpochs,
        NamesWriters,
        Offsets,
        Renumbers,
        Restarts,
        RuleBroken,
        SequenceTarget,
    )
    from kvstore.testing.strategies import rows, schemas
    from kvstore.testing.writer_machine import SequenceWriter, WriterMachine
except ModuleNotFoundError as error:
    if error.name != "hypothesis":
        raise
    raise ImportError("kvstore.testing needs Hypothesis: install the extra `testing`, or `hypothesis`.") from error

__all__ = [
    "MOVES",
    "RULES",
    "WRITER_RULES",
    "Answer",
    "AppliesEpochs",
    "Batch",
    "EngineModel",
    "History",
    "HistoryModel",
    "LossyTarget",
    "Model",
    "ModelTarget",
    "NamesWriters",
    "Network",
    "Offsets",
    "Operation",
    "Part",
    "Recorder",
    "Refused",
    "Renumbers",
    "Reply",
    "Request",
    "Restarts",
    "RuleBroken",
    "Rules",
    "SequenceMachine",
    "SequenceTarget",
    "SequenceWriter",
    "Verdict",
    "WriterMachine",
    "certify",
    "changes",
    "histories",
    "moves",
    "read_history",
    "rows",
    "schemas",
]
