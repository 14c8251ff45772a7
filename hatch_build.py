"""Adds the connector's jar, which git ignores, to the wheel that ``make wheel`` builds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class JarHook(BuildHookInterface):
    """The hook that hatchling finds in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Have the jar taken along."""
        jars = "kvstore/spark/connector/*.jar"
        if not any(Path(self.root).glob(jars)):
            raise FileNotFoundError("Make the jar of the connector first: python -m kvstore.spark.connector.build")
        build_data["artifacts"].append(jars)
