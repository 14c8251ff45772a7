"""Fixtures of crash tests."""

from tests.crash.conftest import judges, recorder, tell, work

__all__ = ["judges", "recorder", "tell", "work"]
