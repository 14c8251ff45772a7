"""Judges whether a history of concurrent operations is linearizable, and shows the smallest part that is not."""

from kvstore.testing.linearizability.certification import certify
from kvstore.testing.linearizability.files import read_history
from kvstore.testing.linearizability.models import HistoryModel
from kvstore.testing.linearizability.operations import Operation
from kvstore.testing.linearizability.recorder import Recorder
from kvstore.testing.linearizability.verdict import Part, Verdict

__all__ = ["HistoryModel", "Operation", "Part", "Recorder", "Verdict", "certify", "read_history"]
