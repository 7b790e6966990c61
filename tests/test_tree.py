"""What holds for the tree as a whole."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
SOURCES = ("vlrl", "tests", "configs", "launch", "docs", ".ci", "README.md", "pyproject.toml")
TEXT = {".py", ".md", ".sh", ".toml", ".json", ".jinja", ""}
MACHINE_PATHS = ("/" + "work/", "/" + "root/", "/" + "home/")

IMPORT_EVERYTHING = """
import importlib.machinery, pkgutil, sys

find = importlib.machinery.PathFinder.find_spec

def find_core(name, *rest):
    return None if name.split(".")[0] in ("torch", "peft") else find(name, *rest)

importlib.machinery.PathFinder.find_spec = find_core
import vlrl
for module in pkgutil.walk_packages(vlrl.__path__, "vlrl."):
    importlib.import_module(module.name)
assert "torch" not in sys.modules
"""


def files() -> list[pathlib.Path]:
    found = [path for name in SOURCES for path in [ROOT / name, *(ROOT / name).rglob("*")]]
    return [path for path in found if path.is_file() and path.suffix in TEXT and "__pycache__" not in path.parts]


def test_no_file_names_a_path_of_a_machine() -> None:
    naming = [str(path) for path in files() if any(place in path.read_text() for place in MACHINE_PATHS)]
    assert naming == []


def test_every_module_imports_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_EVERYTHING], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
