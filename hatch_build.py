"""Adds the connector's jar, which git ignores, to the wheel that ``make wheel`` builds."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class JarHook(BuildHookInterface):
    """The hook that hatchling finds in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Have the jar taken along."""
        build_data["artifacts"].append("kvstore/spark/connector/*.jar")
