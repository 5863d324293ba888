"""The order in which files are handed to the processes of `make test`."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file first; it makes the smoke run that other files wait for, while the rest goes
    on beside it.
    """
    items.sort(key=lambda item: item.path.name != "test_run.py")
