"""Tests of tables, writers and sequences by properties: models, strategies and machines for Hypothesis.

Needs Hypothesis, which the extra ``testing`` installs.
"""

try:
    import hypothesis  # noqa: F401 - here, so that the error names what to install
except ImportError as error:
    raise ImportError("kvstore.testing needs Hypothesis: install the extra `testing`, or `hypothesis`.") from error

# isort: split
from kvstore.testing.engine_model import EngineModel
from kvstore.testing.histories import Batch, History, changes, histories
from kvstore.testing.model import Answer, Model, Refused, Rules
from kvstore.testing.strategies import rows, schemas

__all__ = [
    "Answer",
    "Batch",
    "EngineModel",
    "History",
    "Model",
    "Refused",
    "Rules",
    "changes",
    "histories",
    "rows",
    "schemas",
]
