"""Statements of SQL, and what each makes of rows: a model in plain Python.

A table is a dict from ``k`` to ``s`` and ``n``. A statement that writes a key twice is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

Row = tuple[int, str | None, int | None]
Rows = dict[int, tuple[str | None, int | None]]
Condition = tuple[str, Callable[[Row, Rows], bool]]
Assignment = tuple[str, Callable[[Row], Row]]

CREATE = "CREATE TABLE kv.t (k bigint, s string, n int, PRIMARY KEY (k)) TBLPROPERTIES ('bucket.num' = '{}')"


class Twice(Exception):
    """The statement writes a key twice."""


@dataclass(frozen=True)
class Delta:
    """What a statement writes."""

    deletes: frozenset[int]
    upserts: Rows

    @classmethod
    def of(cls, deletes: Iterable[int], upserts: Iterable[Row]) -> Delta:
        found: Rows = {}
        for k, s, n in upserts:
            if k in found:
                raise Twice
            found[k] = s, n
        return cls(frozenset(deletes) - found.keys(), found)

    def apply(self, rows: Rows) -> Rows:
        return {k: row for k, row in rows.items() if k not in self.deletes} | self.upserts


@dataclass(frozen=True)
class Statement:
    """A statement, and what it writes into given rows."""

    sql: str
    delta: Callable[[Rows], Delta]


CONDITIONS: tuple[Condition, ...] = (
    ("t.k % 3 = 1", lambda row, _: row[0] % 3 == 1),
    ("t.k BETWEEN 4 AND 11", lambda row, _: 4 <= row[0] <= 11),
    ("t.n > 5", lambda row, _: row[2] is not None and row[2] > 5),
    ("t.n IS NULL OR t.n < 3", lambda row, _: row[2] is None or row[2] < 3),
    ("t.s LIKE 'a%'", lambda row, _: row[1] is not None and row[1].startswith("a")),
    ("t.s IS NULL", lambda row, _: row[1] is None),
    ("t.k IN (SELECT id FROM range(3, 9))", lambda row, _: 3 <= row[0] < 9),
    ("EXISTS (SELECT 1 FROM kv.t o WHERE o.k = t.k + 1)", lambda row, rows: row[0] + 1 in rows),
    ("t.k = 7", lambda row, _: row[0] == 7),
    ("true", lambda *_: True),
    ("t.k < 0", lambda *_: False),
)
SIMPLE = tuple(each for each in CONDITIONS if "SELECT" not in each[0])
"""Those that a clause of MERGE may have."""
COMPARISONS: tuple[Condition, ...] = (
    *(CONDITIONS[place] for place in (1, 2, 4, 5, 8, 10)),
    ("t.k IN (3, 5, 8) AND t.s IS NOT NULL", lambda row, _: row[0] in (3, 5, 8) and row[1] is not None),
    ("t.n <> 3", lambda row, _: row[2] is not None and row[2] != 3),
    ("NOT (t.n > 5)", lambda row, _: row[2] is not None and row[2] <= 5),
)
"""Those that tell which rows an INSERT replaces."""
ASSIGNMENTS: tuple[Assignment, ...] = (
    ("n = t.n + 1", lambda row: (row[0], row[1], None if row[2] is None else row[2] + 1)),
    ("s = concat(t.s, 'x'), n = t.k", lambda row: (row[0], None if row[1] is None else row[1] + "x", row[0])),
    ("s = NULL", lambda row: (row[0], None, row[2])),
    ("s = 'a', n = NULL", lambda row: (row[0], "a", None)),
    ("k = 30 - t.k", lambda row: (30 - row[0], row[1], row[2])),
    ("k = t.k + 1, s = 'moved'", lambda row: (row[0] + 1, "moved", row[2])),
    ("k = t.k % 4", lambda row: (row[0] % 4, row[1], row[2])),
)


def all_of(rows: Rows) -> list[Row]:
    return [(k, *row) for k, row in rows.items()]


def delete(where: Condition) -> Statement:
    def delta(rows: Rows) -> Delta:
        return Delta.of([row[0] for row in all_of(rows) if where[1](row, rows)], [])

    return Statement(f"DELETE FROM kv.t AS t WHERE {where[0]}", delta)


def update(assignment: Assignment, where: Condition) -> Statement:
    def delta(rows: Rows) -> Delta:
        chosen = [row for row in all_of(rows) if where[1](row, rows)]
        return Delta.of([row[0] for row in chosen], map(assignment[1], chosen))

    return Statement(f"UPDATE kv.t AS t SET {assignment[0]} WHERE {where[0]}", delta)


def insert(rows: list[Row]) -> Statement:
    return Statement(f"INSERT INTO kv.t {source_of(rows)}", lambda _: Delta.of([], rows))


def insert_keys(keys: list[int]) -> Statement:
    values = ", ".join(f"({key})" for key in keys)
    return Statement(
        f"INSERT INTO kv.t (k) VALUES {values}", lambda _: Delta.of([], [(key, None, None) for key in keys])
    )


def overwrite(rows: list[Row]) -> Statement:
    return Statement(f"INSERT OVERWRITE kv.t {source_of(rows)}", lambda there: Delta.of(there, rows))


def replace_where(where: Condition, rows: list[Row]) -> Statement:
    sql = f"INSERT INTO kv.t REPLACE WHERE {where[0].replace('t.', '')} {source_of(rows)}"
    return Statement(sql, lambda there: Delta.of([row[0] for row in all_of(there) if where[1](row, there)], rows))


TRUNCATE = Statement("TRUNCATE TABLE kv.t", lambda there: Delta.of(there, []))


def merge(
    source: list[Row],
    on: Condition,
    matched: list[tuple[Condition, Assignment | None]],
    inserts: bool,
    unmatched: list[tuple[Condition, Assignment | None]],
) -> Statement:
    """A MERGE.

    Args:
        on: Condition beside the key's.
        matched, unmatched: Clauses of rows with and without a row in the source: their condition, and what becomes of
            the row; None if it is deleted. The assignment of the source's row is ``TAKEN``.
    """
    sql = f"MERGE INTO kv.t AS t USING ({source_of(source)}) AS x ON t.k = x.k AND ({on[0]})"
    inserting = [" WHEN NOT MATCHED THEN INSERT *"] if inserts else []
    sql += "".join(_clauses("MATCHED", matched) + inserting + _clauses("NOT MATCHED BY SOURCE", unmatched))
    given = {row[0]: row for row in source}

    def delta(rows: Rows) -> Delta:
        deletes, upserts, found = [], [], set()
        for row in all_of(rows):
            is_matched = row[0] in given and on[1](row, rows)
            if is_matched:
                found.add(row[0])
            for where, assignment in matched if is_matched else unmatched:
                if where[1](row, rows):
                    deletes.append(row[0])
                    if assignment is TAKEN:
                        upserts.append(given[row[0]])
                    elif assignment is not None:
                        upserts.append(assignment[1](row))
                    break
        if inserts:
            upserts += [row for row in source if row[0] not in found]
        return Delta.of(deletes, upserts)

    return Statement(sql, delta)


TAKEN: Assignment = ("s = x.s, n = x.n", lambda row: row)


def _clauses(word: str, clauses: list[tuple[Condition, Assignment | None]]) -> list[str]:
    thens = ["DELETE" if assignment is None else f"UPDATE SET {assignment[0]}" for _, assignment in clauses]
    return [f" WHEN {word} AND {where[0]} THEN {then}" for (where, _), then in zip(clauses, thens, strict=True)]


def source_of(rows: list[Row]) -> str:
    """A query that gives these rows."""
    values = ", ".join(
        f"(bigint({k}), {'NULL' if s is None else repr(s)}, int({'NULL' if n is None else n}))" for k, s, n in rows
    )
    if rows:
        return f"SELECT * FROM VALUES {values} AS v(k, s, n)"
    return "SELECT id AS k, '' AS s, 0 AS n FROM range(0)"


def some_rows(random: Random, count: int) -> list[Row]:
    """Rows of different keys."""
    return [
        (k, random.choice([None, "a", "abc", "b"]), random.choice([None, *range(10)]))
        for k in random.sample(range(24), count)
    ]


def below(limit: int | None, where: Condition) -> Condition:
    """The condition, for keys below a limit only."""
    if limit is None:
        return where
    return f"t.k < {limit} AND ({where[0]})", lambda row, rows: row[0] < limit and where[1](row, rows)


def statement(random: Random, limit: int | None = None) -> Statement:
    """A random statement; half of them are MERGE.

    Args:
        limit: Only rows of lower keys are written, but for INSERT OVERWRITE and REPLACE WHERE.
    """
    match random.randrange(8):
        case 0:
            return delete(below(limit, random.choice(CONDITIONS)))
        case 1 | 2:
            return update(random.choice(ASSIGNMENTS), below(limit, random.choice(CONDITIONS)))
        case 3:
            if random.random() < 0.5:
                rows = some_rows(random, random.randrange(12))
                return overwrite(rows) if random.random() < 0.5 else replace_where(random.choice(COMPARISONS), rows)
            return random.choice([insert(some_rows(random, 5)), insert_keys(random.sample(range(24), 3))])
    clauses: list[tuple[Condition, Assignment | None]]
    simple = [below(limit, each) for each in SIMPLE]
    clauses = [(random.choice(simple), random.choice([TAKEN, TAKEN, None, *ASSIGNMENTS[:4]])) for _ in range(2)]
    others = [(random.choice(simple), random.choice([None, *ASSIGNMENTS])) for _ in range(random.randrange(2))]
    on = ("true", lambda *_: True) if random.random() < 0.8 else SIMPLE[2]
    source = some_rows(random, 8)
    if random.random() < 0.2:  # Spark plans it as an INSERT, and does not count the rows of a key
        again = [(source[0][0], "again", 0)] if random.random() < 0.5 else []
        return merge(source + again, ("true", lambda *_: True), [], True, [])
    return merge(source, on, clauses[random.randrange(2) :], random.random() < 0.8, others)


SHORT = (
    insert([(k, "abc" if k % 2 else None, k) for k in range(12)]),
    update(ASSIGNMENTS[1], CONDITIONS[0]),
    update(ASSIGNMENTS[5], CONDITIONS[1]),
    delete(CONDITIONS[7]),
    merge(
        [(4, "in", 4), (5, None, None), (20, "new", 1)],
        ("true", lambda *_: True),
        [(CONDITIONS[2], None), (CONDITIONS[9], TAKEN)],
        True,
        [(CONDITIONS[5], ASSIGNMENTS[3])],
    ),
    merge([(4, "is there", 0), (21, "new", 2)], ("true", lambda *_: True), [], True, []),
    merge([(22, "once", 0), (22, "twice", 2)], ("true", lambda *_: True), [], True, []),
    insert_keys([4, 30]),
    update(ASSIGNMENTS[6], CONDITIONS[9]),
    overwrite([(4, "in", 4), (7, None, 7)]),
    replace_where(COMPARISONS[1], [(9, "new", 9), (4, "stays", 1)]),
    TRUNCATE,
)
"""One of each kind."""
