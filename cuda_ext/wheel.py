"""Build the kernels as a wheel of their own: ``python -m cuda_ext.wheel`` (or ``make wheel``).

The wheel, ``reread_kernels-VERSION-py3-none-linux_x86_64.whl``, contains the package ``cuda_ext`` and a library with
machine code for the GPUs in ``build.ARCHITECTURES`` and PTX for later ones. It needs torch alone. The sources of
the kernels, the benchmarks and the tests stay in the repository. Building needs nvcc, setuptools and no GPU.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cuda_ext import build
from cuda_ext.errors import KernelError, command

ROOT = build.SOURCES.parent
# What only a checkout can use: benchmarks, their evidence, and the compiler's inputs.
LEFT_OUT = ("__pycache__", "_build", "results", "*.cu", "*.cuh", "pyproject.toml", "cases.py", "README.md")
PROGRAMS_LEFT_OUT = ("bench.py", "case.py", "exercise.py", "pairs.py", "report.py", "wheel.py")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cuda_ext.wheel", description="Build the kernels as a wheel.")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="the folder that gets the wheel")
    parser.add_argument(
        "--without-library", action="store_true", help="leave the compiled library out: the references run alone"
    )
    arguments = parser.parse_args()
    library = None if arguments.without_library else build.BUILT
    if library:
        build.build(library)
    print(f"built {wheel(arguments.output, library)}")


def wheel(output: Path, library: Path | None) -> Path:
    """Write the wheel to ``output`` and return its path.

    library: the folder of a built library with its library.json, or None for a wheel whose references run alone.
    """
    output = output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        stage = Path(directory)
        package = stage / "cuda_ext"
        ignored = shutil.ignore_patterns(*LEFT_OUT, *PROGRAMS_LEFT_OUT)
        shutil.copytree(build.SOURCES, package, ignore=ignored)
        for source in (build.SOURCES / "pyproject.toml", build.SOURCES / "README.md", ROOT / "LICENSE"):
            shutil.copy(source, stage)
        if library:
            (package / "_build").mkdir()
            about = json.loads((library / "library.json").read_text(encoding="utf-8"))
            for name in ("library.json", about["file"]):
                shutil.copy(library / name, package / "_build")
        code = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", code, str(output)], cwd=stage, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise KernelError(f"setuptools cannot build the wheel:\n{done.stderr.strip()[-2000:]}")
    return max(output.glob("reread_kernels-*.whl"), key=lambda path: path.stat().st_mtime_ns)


if __name__ == "__main__":
    command(main)()
