"""Build the kernels as a wheel of their own: ``python -m cuda_ext.wheel`` (or ``make wheel``).

The wheel, ``reread_kernels-VERSION+CUDA-py3-none-manylinux_GLIBC_MACHINE.whl``, contains the package
``reread_kernels``, which is this one under another name, and a library with machine code for the GPUs in
``build.ARCHITECTURES`` and PTX for later ones. It needs torch alone. The sources of the kernels, the benchmarks and the
tests stay in the repository, and so does what the library has for tests. Building needs nvcc, setuptools and no GPU.
"""

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cuda_ext import build
from cuda_ext.errors import KernelError, command

ROOT = build.SOURCES.parent
# The package has a name that no other has: in a checkout, tests and models import it by its folder's.
PACKAGE = "reread_kernels"
VERSION = "0.3.0"
# What only a checkout can use: benchmarks, their evidence, and the compiler's inputs.
LEFT_OUT = ("__pycache__", "_build", "results", "*.cu", "*.cuh", "pyproject.toml", "cases.py", "README.md")
PROGRAMS_LEFT_OUT = ("bench.py", "case.py", "exercise.py", "hub.py", "pairs.py", "report.py", "wheel.py")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cuda_ext.wheel", description="Build the kernels as a wheel.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder that gets the wheel")
    parser.add_argument(
        "--without-library", action="store_true", help="leave the compiled library out: the references run alone"
    )
    arguments = parser.parse_args()
    # Refused here: compiling takes minutes.
    build.writable(arguments.output)
    with tempfile.TemporaryDirectory() as folder:
        library = None if arguments.without_library else Path(folder)
        if library:
            build.build(wheel=library)
        print(f"built {wheel(arguments.output, library)}")


def wheel(output: Path, library: Path | None) -> Path:
    """Write the wheel to ``output`` and return its path.

    library: the folder of a built library with its library.json, or None for a wheel whose references run alone.
    """
    output = build.writable(output)
    with tempfile.TemporaryDirectory() as directory:
        stage = Path(directory)
        package = stage / PACKAGE
        modules = copy_package(package)
        for source in (build.SOURCES / "pyproject.toml", build.SOURCES / "README.md", ROOT / "LICENSE"):
            shutil.copy(source, stage)
        for file in [stage / "README.md", *modules]:
            file.write_text(renamed(file.read_text(encoding="utf-8")), encoding="utf-8")
        version, tag = VERSION, "any"
        if library:
            (package / "_build").mkdir()
            about = json.loads((library / "library.json").read_text(encoding="utf-8"))
            for name in ("library.json", about["file"]):
                shutil.copy(library / name, package / "_build")
            version += f"+cu{about['nvcc'].replace('.', '')}"
            tag = f"manylinux_{oldest_glibc(library / about['file'])}_{platform.machine()}"
        with (package / "__init__.py").open("a", encoding="utf-8") as module:
            module.write(f'\n__version__ = "{version}"\n')
        (stage / "setup.cfg").write_text(f"[bdist_wheel]\nplat_name = {tag}\n", encoding="utf-8")
        code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", code, str(output)], cwd=stage, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise KernelError(f"setuptools cannot build the wheel:\n{done.stderr.strip()[-2000:]}")
    return max(output.glob(f"{PACKAGE}-*.whl"), key=lambda path: path.stat().st_mtime_ns)


def copy_package(package: Path) -> list[Path]:
    """Copy the modules that need no checkout to a new folder ``package``, and return them."""
    shutil.copytree(build.SOURCES, package, ignore=shutil.ignore_patterns(*LEFT_OUT, *PROGRAMS_LEFT_OUT))
    return list(package.rglob("*.py"))


def renamed(text: str) -> str:
    """A text with the package's name; a path, such as cuda_ext/build.py, and a command are those of a checkout."""
    return re.sub("(?<!python -m )cuda_ext(?!/)", PACKAGE, text)


def oldest_glibc(library: Path) -> str:
    """Return the oldest version of glibc with which a library loads, as a wheel's tag has it: 2_34 (PEP 600)."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", library.read_bytes())
    return "{}_{}".format(*max((int(major), int(minor)) for major, minor in versions))


if __name__ == "__main__":
    command(main)()
