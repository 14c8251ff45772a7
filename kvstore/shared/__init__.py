"""Shared tables: tables in an object store that Spark writes from any machine. Here is their upkeep."""

from kvstore.shared.check import SharedFinding, SharedReport
from kvstore.shared.snapshots import SnapshotSummary
from kvstore.shared.upkeep import check, snapshot, vacuum
from kvstore.shared.vacuum import VacuumSummary

__all__ = ["SharedFinding", "SharedReport", "SnapshotSummary", "VacuumSummary", "check", "snapshot", "vacuum"]
