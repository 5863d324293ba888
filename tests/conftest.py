"""How tests are shared out over processes (`make test`): by file, and the tests on the finished smoke run together in one."""

from __future__ import annotations

import pytest


def _group(item: pytest.Item) -> str:
    return "smoke run" if "finished" in getattr(item, "fixturenames", ()) else str(item.path)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest groups first, so that the processes end together; the order within a group stays."""
    items.sort(key=lambda item: (_group(item) != "smoke run", "workflow" not in item.path.parts))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
