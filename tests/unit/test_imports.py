"""The rooms import one way along the line (docs/architecture.md), and no library module imports
snakemake.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "workflow" / "normgauge"
ORDER = (
    "errors",
    "yaml_files",
    "progress",
    "jackknife",
    "provenance",
    "tables",
    "schemas",
    "selection",
    "published",
    "anatomy",
    "checkpoints",
    "calibration",
    "training",
    "moments",
    "capture",
    "fingerprint",
    "dead_directions",
    "gauge",
    "transport",
    "signed_permutation",
    "trajectories",
    "exact_recovery",
    "redundancy",
    "checkpoint_comparison",
    "lineage",
    "ledger",
    "render",
    "live",
    "verbs",
    "command",
)
RENDER_MAY_IMPORT = {
    "errors",
    "yaml_files",
    "jackknife",
    "provenance",
    "tables",
    "schemas",
    "selection",
    "published",
    "render",
}


def rooms_imported_by(source: str) -> set[str]:
    """Rooms of normgauge named in any import statement, at any depth of the source."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            if node.module == "normgauge":
                modules |= {f"normgauge.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in modules if name.startswith("normgauge.")}


def backward_imports(room: str, source: str) -> set[str]:
    allowed = RENDER_MAY_IMPORT if room == "render" else set(ORDER[: ORDER.index(room) + 1])
    return rooms_imported_by(source) & set(ORDER) - allowed


def library_files():
    return sorted(
        path for path in LIBRARY.rglob("*.py") if path.parent != LIBRARY or path.stem in ORDER
    )


def room_of(path: Path) -> str:
    return path.relative_to(LIBRARY).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", library_files(), ids=lambda path: str(path.relative_to(LIBRARY)))
def test_imports_go_one_way(path):
    assert backward_imports(room_of(path), path.read_text()) == set()


def test_every_room_is_in_the_order():
    rooms = {room_of(path) for path in LIBRARY.rglob("*.py")} - {"__init__"}
    assert rooms == set(ORDER)


def test_the_page_of_the_architecture_writes_this_order():
    page = (LIBRARY.parents[1] / "docs" / "architecture.md").read_text()
    assert f"`{' < '.join(ORDER)}`" in page


def test_the_check_sees_a_backward_import():
    assert backward_imports("moments", "def f():\n    from normgauge.capture import capture") == {
        "capture"
    }
    assert backward_imports("render", "from normgauge import anatomy") == {"anatomy"}


@pytest.mark.parametrize("path", library_files(), ids=lambda path: str(path.relative_to(LIBRARY)))
def test_the_library_does_not_import_snakemake(path):
    tree = ast.parse(path.read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.split(".")[0] == "snakemake"]


def test_a_config_is_read_without_loading_the_classes_of_models():
    script = (
        "import sys, normgauge.checkpoints.configuration; "
        "sys.exit('transformers.modeling_utils' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=LIBRARY.parent, check=True)


def calls_that_may_run_code(source: str) -> list[int]:
    """Lines of calls to `from_pretrained` that do not refuse a checkpoint's own code."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    loading = [
        call
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "from_pretrained"
    ]

    def refuses(call: ast.Call) -> bool:
        given = {keyword.arg: keyword.value for keyword in call.keywords}.get("trust_remote_code")
        return isinstance(given, ast.Constant) and given.value is False

    return [call.lineno for call in loading if not refuses(call)]


def test_no_call_into_transformers_may_run_the_code_of_a_checkpoint():
    assert calls_that_may_run_code(
        "A.from_pretrained(x)\nA.from_pretrained(x, trust_remote_code=True)"
    ) == [1, 2]
    assert not calls_that_may_run_code("A.from_pretrained(x, trust_remote_code=False)")
    found = {
        path.name: lines
        for path in LIBRARY.rglob("*.py")
        if (lines := calls_that_may_run_code(path.read_text(encoding="utf-8")))
    }
    assert not found
