"""The edits with which a promotion ends: what the former leader left open, and the beginning of the new epoch. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from kvstore.meta.consumers import moved_back
from kvstore.meta.state import CatalogState
from logformat.catalog.edits import BeginEpoch, Edit, EndCommit, Payload, ReportReplica
from logformat.catalog.replicas import CATALOG, Shipped
from logformat.ids import Epoch, TableId, Txid


def final_edits(
    state: CatalogState,
    ends: Mapping[TableId, Mapping[int, int]],
    not_shipped_to: Container[str],
    leader: str,
    epoch: Epoch,
    now_ms: int,
) -> Iterator[Edit]:
    """The edits that follow a state.

    Args:
        ends: The ends of the buckets of each table.
        not_shipped_to: Replicas to which no leader of this store has shipped.
        leader: The text that identifies the new leader.
        epoch: The new epoch.
    """
    last: list[Payload] = []
    for id, writers in state.writers.items():
        # A round is consistent, so each of these commits is in all buckets or in none.
        last += [EndCommit(table_id=id, commit_id=commit.commit_id) for commit in writers.commits]
    for id, consumers in state.consumers.items():
        last += moved_back(id, consumers, ends[id])
    # Unless its catalog says that something was shipped to a replica, a leader refuses to ship to one that has another
    # leader's objects; and the copy may lack the edit that says so.
    for name, replica in state.replicas.items():
        if name not in not_shipped_to and not replica.shipped:
            nothing = Shipped(stream=CATALOG, start=0, end=0, snapshots=[])
            last.append(ReportReplica(name=name, shipped=[nothing]))
    for number, payload in enumerate(last, 1):
        yield Edit(txid=Txid(state.txid + number), epoch=state.leader_epoch, time_ms=now_ms, payload=payload)
    begin = BeginEpoch(leader=leader)
    yield Edit(txid=Txid(state.txid + len(last) + 1), epoch=epoch, time_ms=now_ms, payload=begin)
