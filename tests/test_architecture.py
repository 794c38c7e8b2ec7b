"""Laws of the house: who imports whom, whose the package names are, and what the files may name."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LISTED: list[str] = PROJECT["tool"]["setuptools"]["packages"]
TOP = sorted({name.partition(".")[0] for name in LISTED})

#: Whom of ours each package may import. The edges meet at Kafka, never in Python.
MAY_IMPORT = {
    "evidence": set[str](),
    "vitals": set(),
    "rules": {"evidence"},
    "collectors": {"evidence", "vitals"},
    "warehouse": {"evidence", "vitals"},
    "schedulers": {"evidence", "vitals"},
    "streams": {"evidence", "rules", "vitals"},
    "ringfence": {
        "evidence",
        "vitals",
        "rules",
        "collectors",
        "warehouse",
        "schedulers",
        "streams",
    },
}
#: What would be I/O in a package that does none: rules reads its own data files, evidence nothing.
NO_IO = {"socket", "subprocess", "kafka", "aiokafka", "faust", "duckdb", "threading", "asyncio"}
PURE = ("evidence", "rules")

# Built from parts, so that this file does not name what it forbids.
_THIS_MACHINE = re.compile(
    "|".join((re.escape(str(ROOT)) + r"\b", "/home/" + r"\w", "/Users/" + r"\w"))
)
_REGISTRIES = re.compile(
    "|".join(
        (
            "pypi" + r"\.org",
            "python" + r"hosted\.org",
            "repo" + r"[0-9]*\.maven",
            "npm" + r"js\.org",
        )
    )
)
_BORROWED = re.compile("shared/" + "(?:facts|cases|data|design|style)")


def _sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _imports(path: Path) -> dict[str, int]:
    """Top-level names that a file imports anywhere in it, with the first line of each."""
    found: dict[str, int] = {}
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            names = [node.module or ""]
        elif (
            # importlib.import_module("name"), and the front door's own need("name", ...)
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name | ast.Attribute)
            and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id)
            in ("import_module", "__import__", "need")
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and isinstance(node.args[0].value, str)
        ):
            names = [node.args[0].value]
        for name in names:
            found.setdefault(name.partition(".")[0], getattr(node, "lineno", 0))
    return found


def _tracked() -> list[Path]:
    """The repository's files: tracked ones and those not yet added, without what git ignores."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip("not a git checkout: nothing tells our files from what lies around")
    return [ROOT / name for name in done.stdout.decode().split("\0") if name]


def _texts(paths: list[Path]) -> list[tuple[Path, str]]:
    found = []
    for path in paths:
        if path.is_file():
            raw = path.read_bytes()
            if b"\0" not in raw[:4096]:
                found.append((path.relative_to(ROOT), raw.decode(errors="replace")))
    return found


def _places(pattern: re.Pattern[str], texts: list[tuple[Path, str]]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:120]}"
        for path, text in texts
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("package", TOP)
def test_a_package_imports_only_whom_it_may(package: str) -> None:
    allowed = MAY_IMPORT[package] | {package}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in _sources(package)
        for name, line in _imports(path).items()
        if name in TOP and name not in allowed
    ]
    assert wrong == []


def test_the_law_names_every_package() -> None:
    assert sorted(MAY_IMPORT) == TOP


def test_the_import_finder_sees_every_way_to_import(tmp_path: Path) -> None:
    path = tmp_path / "odd.py"
    path.write_text(
        "import rules.stage\n"
        "def late():\n"
        "    from streams.config import WorkerConfig\n"
        "    importlib.import_module('warehouse.sink')\n"
        "    need('schedulers.exec', 'extra')\n"
    )
    assert _imports(path) == {"rules": 1, "streams": 3, "warehouse": 4, "schedulers": 5}


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_import_nothing_that_does_io(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in _sources(package)
        for name, line in _imports(path).items()
        if name in NO_IO
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PURE)
def test_pure_packages_do_not_ask_a_clock(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in _sources(package)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("now", "utcnow", "today", "time", "monotonic", "perf_counter")
        and isinstance(node.value, ast.Name)
        and node.value.id in ("datetime", "date", "time")
    ]
    assert wrong == []


def test_every_package_folder_is_listed_and_typed() -> None:
    folders = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in TOP
        for path in (ROOT / top).rglob("__init__.py")
    }
    assert sorted(LISTED) == sorted(folders)
    assert [top for top in TOP if not (ROOT / top / "py.typed").exists()] == []


@pytest.mark.parametrize("package", TOP)
def test_each_top_level_name_belongs_only_to_us(package: str) -> None:
    owners = {
        distribution.metadata["Name"]
        for distribution in importlib.metadata.distributions()
        for file in distribution.files or []
        if file.parts[:1] in ((package,), (f"{package}.py",))
    }
    assert owners <= {PROJECT["project"]["name"]}
    beside = [
        candidate
        for folder in sys.path
        for candidate in (Path(folder) / package, Path(folder) / f"{package}.py")
        if (candidate.is_dir() or candidate.suffix) and candidate.exists()
    ]
    assert [path for path in beside if path.resolve() != ROOT / package] == []
    assert package not in sys.stdlib_module_names


def test_no_file_names_a_path_of_the_machine_it_was_written_on() -> None:
    assert _places(_THIS_MACHINE, _texts(_tracked())) == []


def test_no_file_names_a_registry() -> None:
    assert _places(_REGISTRIES, _texts(_tracked())) == []


def test_only_tests_name_material_that_is_not_in_the_repository() -> None:
    texts = [(path, text) for path, text in _texts(_tracked()) if path.parts[0] != "tests"]
    assert _places(_BORROWED, texts) == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    said = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
    named = [
        str(path.relative_to(ROOT))
        for top in TOP
        for path in _sources(top)
        if said & set(path.stem.split("_"))
    ]
    assert named == []
