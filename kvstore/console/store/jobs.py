"""Ingestion jobs: what each has loaded, its tasks, and why one failed."""

from __future__ import annotations

from typing import Any

import msgspec

from kvstore import Store
from kvstore.clock import time_text
from kvstore.console.commands import command
from kvstore.console.html import Content, Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, fact_list, grid, is_error, pager, size_text
from kvstore.console.query import Query
from kvstore.errors import InvalidRequest
from logformat.urls import without_credentials

JOBS_SHOWN = 50
FILES_SHOWN = 50


def jobs_page(store: Store, query: Query) -> Page:
    """All jobs; ``page`` counts from 1."""
    names, number = store.list_jobs(), query.number("page", least=1) or 1
    skipped = (number - 1) * JOBS_SHOWN
    jobs_shown = [
        {"job": name, "status": attempt(lambda name=name: job_facts(store, name))}  # type: ignore[misc]  # a default
        for name in names[skipped : skipped + JOBS_SHOWN]
    ]
    facts = {"jobs_all": len(names), "jobs": jobs_shown}

    def to(page: int) -> str | None:
        return url("/jobs", page=page) if page >= 1 and (page - 1) * JOBS_SHOWN < len(names) else None

    def body() -> Html:
        columns = ["job", "table", "state", "offset", "files", "rows loaded", "rows left out", "failed tasks"]
        shown = grid("Jobs", columns, [_row(each) for each in jobs_shown], right=[False] * 4 + [True] * 4)
        pages = pager(Previous=to(number - 1), Next=to(number + 1)) if len(names) > JOBS_SHOWN else None
        none = tag("p", "The store has no ingestion job; kvstore job create makes one.", class_="none")
        return tag("div", shown if jobs_shown else none, pages)

    return Page("Jobs", facts, body, command("job ls", store.path), url("/api/jobs", page=query.text("page")),
                tab="jobs")  # fmt: skip


def job_page(store: Store, query: Query) -> Page:
    """The job ``name``."""
    name = query.text("name")
    if name is None:
        raise InvalidRequest("Name a job by `name`.")
    facts = job_facts(store, name)

    def body() -> Html:
        about = {each: facts[each] for each in ("state", "source", "format", "offset", "failures")}
        about["table"] = tag("a", facts["table"], href=f"/tables/{store.table(facts['table']).identity[1]}")
        return tag(
            "div",
            _paused(facts, name, store),
            fact_list({each: _shown(value) for each, value in about.items()}),
            tag("section", tag("h2", "Loaded so far"), fact_list(_statistics(facts["statistics"]))),
            tag("section", tag("h2", "Limits of a task"), fact_list(_statistics(facts["options"]))),
            _open_task(facts["task"]),
            tag("section", tag("h2", "Last tasks, the newest first"), _tasks(facts["history"])),
            tag("p", tag("span", "Rows that were left out are in", class_="label"), tag("code", facts["rejected"])),
        )

    return Page(f"Job {name}", facts, body, command("job show", store.path, name),
                url("/api/jobs/job", name=name), tab="jobs")  # fmt: skip


def job_facts(store: Store, name: str) -> dict[str, Any]:
    """A job as ``kvstore job show --json`` prints it.

    Raises:
        InvalidRequest: There is no job of this name.
    """
    job = store.job(name)
    status = _with_times(without_credentials(msgspec.to_builtins(job.show())))
    status["history"] = [_with_times(each) for each in status["history"]]
    status["task"] = None if status["task"] is None else _with_times(status["task"])
    return {"job": status.pop("name"), "table": job.table, **status, "rejected": str(job.rejected(1).parent)}


def _with_times(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        name.removesuffix("_ms"): time_text(value) if name.endswith("_ms") and value is not None else value
        for name, value in facts.items()
    }


def _row(each: dict[str, Any]) -> list[Content]:
    link = tag("a", each["job"], href=url("/jobs/job", name=each["job"]))
    status = each["status"]
    if is_error(status):
        return [link, "", tag("strong", status["error"]["class"]), status["error"]["message"], "", "", "", ""]
    counts = status["statistics"]
    names = ("file_number", "loaded_rows", "filtered_rows", "failed_tasks")
    return [link, status["table"], status["state"], _shown(status["offset"]), *(f"{counts[name]:,}" for name in names)]


def _paused(facts: dict[str, Any], name: str, store: Store) -> Html | None:
    if facts["reason"] is None:
        return None
    then = f"It resumes at {facts['resume']}." if facts["resume"] is not None else ""
    return tag(
        "section",
        tag("p", tag("strong", facts["state"]), ": ", facts["reason"]),
        tag("p", then) if then else None,
        None if then else tag("p", tag("code", command("job resume", store.path, name))),
        class_="attention",
        aria_label="Why the job is paused",
    )


def _statistics(counts: dict[str, Any]) -> dict[str, Content]:
    return {
        name.replace("_", " "): size_text(value) if "bytes" in name or name == "file_size" else f"{value:,}"
        for name, value in counts.items()
    }


def _open_task(task: dict[str, Any] | None) -> Html | None:
    if task is None:
        return None
    files = task["files"]
    rows = [[each["path"], size_text(each["size"])] for each in files[:FILES_SHOWN]]
    more = f" The first {FILES_SHOWN} of {len(files):,} files:" if len(files) > FILES_SHOWN else ""
    return tag(
        "section",
        tag("h2", f"Open task {task['number']:,}"),
        tag("p", f"Begun {task['begun']}.{more}", class_="note"),
        grid("Files of the open task", ["file", "size"], rows, right=[False, True]),
    )


def _tasks(history: list[dict[str, Any]]) -> Html:
    if not history:
        return tag("p", "No task has ended.", class_="none")
    rows: list[list[Content]] = []
    for task in reversed(history):
        counts = task["counts"] or {}
        files = task["first"] if task["files"] == 1 else f"{task['files']:,} files, {task['first']} to {task['last']}"
        counted = [f"{counts[name]:,}" if counts else "" for name in ("loaded_rows", "filtered_rows")]
        outcome = "applied" if task["error"] is None else [tag("strong", "failed: "), task["error"]]
        rows.append([f"{task['number']:,}", task["ended"], files, size_text(task["bytes"]), *counted, outcome])
    names = ["task", "ended", "files", "size", "rows loaded", "rows left out", "outcome"]
    return grid("Last tasks", names, rows, right=[True, False, False, True, True, True])


def _shown(value: Any) -> Content:
    return tag("span", "none", class_="null") if value is None else value
