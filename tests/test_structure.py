"""The house rules that a machine can hold, read from the syntax trees of the package.

Layers; imports across packages from the package and not from a file inside it; what never waits; heavy libraries in one
owner file each; no module over 400 lines; no clean-up by `__del__`, no bare `except`, no `time.sleep`; a `Threads:` line where
threads meet. Imports for type checking alone are exempt.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "zephon_async"
LAYERS = (
    {"errors"},
    {
        "records",
        "views",
        "kinds",
        "nesting",
        "randomness",
        "checks",
        "options",
        "forks",
        "loops",
        "leftovers",
        "batch",
        "training",
        "ragged",
        "token_rows",
        "tensors",
    },
    {"lanes", "operators", "runners", "io"},
    {"work"},
    {"engine"},
    {"pipeline", "building", "reference_names", "explain", "faces", "checkpoints", "starting", "isolation", "recipes"},
    {"integrations", "cli"},
    {"__init__", "__main__"},
)
LAYER = {name: number for number, names in enumerate(LAYERS) for name in names}
SIBLINGS = LAYERS[2]  # they do not know one another
NEVER_WAIT = {"errors", "kinds", "nesting", "randomness", "records", "views", "lanes"}
WAITING = {"anyio", "asyncio", "concurrent", "multiprocessing", "queue", "selectors", "socket", "threading", "time", "trio"}
# fmt: off
HEAVY = {
    "PIL", "aiobotocore", "av", "botocore", "fsspec", "huggingface_hub", "jinja2", "lance", "pyarrow.csv", "pyarrow.dataset",
    "pyarrow.fs", "pyarrow.json", "pyarrow.parquet", "ray", "rich", "soundfile", "soxr", "tokenizers", "torch", "transformers",
    "uvloop", "vortex",
}
# fmt: on
MOST_LINES = 400
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(), str(path)) for path in FILES}
each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


def top(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def walk(node: ast.AST, into_functions: bool = True) -> Iterator[ast.AST]:
    """Every node below `node`, without those under `if TYPE_CHECKING`, and without the insides of functions if so asked."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        if into_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from walk(child, into_functions)


def imported(path: Path, into_functions: bool = True) -> Iterator[str]:
    """Absolute dotted names of all that `path` imports: `from a import b` gives `a.b`."""
    for node in walk(TREES[path], into_functions):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (PACKAGE.name, *path.relative_to(PACKAGE).parts)[: -node.level] if node.level else ()
            yield from (".".join([*base, *([node.module] if node.module else []), alias.name]) for alias in node.names)


def ours(path: Path) -> Iterator[tuple[str, ...]]:
    """What `path` imports of the package itself, as parts behind its name."""
    return (tuple(name.split(".")[1:]) for name in imported(path) if name.split(".")[0] == PACKAGE.name)


def reaches_inside(*parts: str) -> bool:
    """Whether the dotted name goes through a file of a package, or ends at one that the package does not give out itself."""
    for depth in range(2, len(parts) + 1):
        given_out = TREES.get(PACKAGE.joinpath(*parts[: depth - 1], "__init__.py"), ast.Module([], []))
        names = {alias.name for node in ast.walk(given_out) if isinstance(node, ast.ImportFrom) for alias in node.names}
        if PACKAGE.joinpath(*parts[:depth]).with_suffix(".py").exists() and (depth < len(parts) or parts[-1] not in names):
            return True
    return False


@each_file
def test_imports_go_down_the_layers(path: Path) -> None:
    here = top(path)
    assert here in LAYER, f"{here} has no layer: say in LAYERS where it belongs"
    for target, *inner in ours(path):
        if target == here:
            continue
        assert target in LAYER or LAYER[here] >= LAYER["cli"], f"{target!r}: import from its module, not from the face"
        assert LAYER.get(target, 0) <= LAYER[here], f"{here} may not know {target}, which lies above it"
        assert not {here, target} <= SIBLINGS, f"{here} and {target} are siblings and do not know one another"
        assert not reaches_inside(target, *inner), f"import from the package {target}, not from a file inside it: {inner}"


@each_file
def test_the_rules_of_order_never_wait(path: Path) -> None:
    if top(path) in NEVER_WAIT:
        assert not {name.split(".")[0] for name in imported(path)} & WAITING
        assert not [node.lineno for node in walk(TREES[path]) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]


def test_heavy_libraries_have_one_owner_file_each() -> None:
    owners: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        for name in imported(path, into_functions=False):
            owners[next((heavy for heavy in HEAVY if f"{name}.".startswith(f"{heavy}.")), "")].add(str(path.relative_to(PACKAGE)))
    assert {heavy: files for heavy, files in owners.items() if heavy and len(files) > 1} == {}


@each_file
def test_a_file_can_be_read_in_one_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


@each_file
def test_forbidden_ways(path: Path) -> None:
    for node in ast.walk(TREES[path]):
        assert not (isinstance(node, ast.FunctionDef) and node.name == "__del__"), f"line {node.lineno}: __del__ is no clean-up"
        assert not (isinstance(node, ast.ExceptHandler) and node.type is None), f"line {node.lineno}: a bare except"
        assert not (isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep"), f"line {node.lineno}: sleeping"
    assert "time.sleep" not in set(imported(path))


@each_file
def test_where_threads_meet_it_is_said_why_that_is_safe(path: Path) -> None:
    if "threading" in imported(path):
        said = ast.get_docstring(TREES[path]) or ""
        assert "Threads:" in said, "say in a line `Threads: ...` which lock or ownership makes it safe"
