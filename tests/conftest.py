"""How tests are shared out over processes (`make test`): by file, and the workflow tests, which share a finished run, in one."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "workflow" not in item.path.parts)  # the longest group first; the order within a group stays
    for item in items:
        item.add_marker(pytest.mark.xdist_group("workflow" if "workflow" in item.path.parts else str(item.path)))
