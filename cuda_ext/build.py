"""Compile every kernel of a checkout into one library, ahead of time: ``python -m cuda_ext.build`` (or ``make ext``).

The library uses PyTorch's stable ABI, target 2.11, so that one build serves Python 3.11 to 3.13 and torch 2.11 to
2.13. Nothing here needs a GPU or PyTorch's CUDA build: nvcc and PyTorch's headers are enough. It contains machine code
for the GPUs in ``ARCHITECTURES`` and PTX for later ones.
"""

import argparse
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from cuda_ext.errors import KernelError, command

SOURCES = Path(__file__).resolve().parent
BUILT = SOURCES / "_build"
Architecture = tuple[int, int] | tuple[int, int, str]
# Compute capabilities that get machine code. They are part of the library's key, and so of the keys of trained runs.
# 9.0a is Hopper with the instructions that only Hopper has.
ARCHITECTURES: tuple[Architecture, ...] = ((8, 0), (9, 0, "a"), (10, 0), (12, 0))
# PTX of this one serves all later GPUs; where it is not compiled for, PTX of the last one does.
PTX = (10, 0)
# The first nvcc that knows all of them.
OLDEST_NVCC = (12, 8)
TORCH_TARGET = "2.11"
FLAGS = (
    "-O3",
    "-std=c++17",
    "-Xcompiler=-fPIC",
    "-DUSE_CUDA",
    "-DTORCH_TARGET_VERSION=0x020b000000000000ULL",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cuda_ext.build", description="Compile the CUDA extensions.")
    parser.add_argument("--output", type=Path, default=BUILT, help="the folder that gets the library")
    parser.add_argument(
        "--gpu",
        choices=[f"{major}.{minor}" for major, minor in capabilities()],
        help="compile for GPUs of this compute capability alone, in a quarter of the time (default: for all)",
    )
    arguments = parser.parse_args()
    gpus = [gpu for gpu in ARCHITECTURES if arguments.gpu in (None, "{}.{}".format(*gpu))]
    library = build(arguments.output, gpus)
    print(f"built {library}")


def build(output: Path = BUILT, gpus: Sequence[Architecture] = ARCHITECTURES, wheel: Path | None = None) -> Path:
    """Compile what changed, link, and publish library.json in ``output``. Returns the library's path.

    wheel: another folder, which gets a wheel's library: the same without what only tests call (common/).
    KernelError says in one line what is missing (nvcc, a compiler) or does not fit, and the command that fixes it.
    """
    if not kernel_sources():
        raise KernelError(f"{SOURCES} has no CUDA sources to compile a library from: {remedy(False)}")
    nvcc = find_nvcc()
    release = check_nvcc(nvcc)
    output = writable(output)
    with open(output / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        about = {
            "sources": source_key(),
            "nvcc": ".".join(map(str, release)),
            "torch_target": TORCH_TARGET,
            "architectures": capabilities(gpus),
            "ptx": list(ptx_of(gpus)),
        }
        try:
            objects = compile_sources(nvcc, output / "objects", gpus)
        finally:
            if source_key() != about["sources"]:
                # Ninja takes an object that is newer than the edit to be up to date.
                shutil.rmtree(output / "objects")
                raise KernelError(f"a source in {SOURCES} was edited during the build: build again")
        if wheel:
            operations = [object_ for source, object_ in objects.items() if source.parent.name != "common"]
            publish(wheel, nvcc, operations, about)
        return publish(output, nvcc, list(objects.values()), about)


def writable(folder: Path) -> Path:
    """Make a folder, if there is none, and return its absolute path; KernelError if no file can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder.resolve()
    except OSError as error:
        raise KernelError(
            f"{folder} is no folder that files can be written to ({error.strerror}): name another one"
        ) from None


def publish(output: Path, nvcc: str, objects: Sequence[Path], about: dict[str, Any]) -> Path:
    """Link the objects to a library in ``output``, with its library.json, and remove older ones. Returns its path."""
    library = output / f"cuda_ext-{about['sources']}.so"
    descriptor, temporary = tempfile.mkstemp(dir=output, suffix=".so")
    os.close(descriptor)
    try:
        run([nvcc, "-shared", "-o", temporary, *map(str, objects), *link_flags()])
        os.chmod(temporary, 0o755)
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)
    # Written last, by rename: a reader sees the old library or the new one.
    written = output / "library.json.new"
    text = json.dumps({"file": library.name} | about, indent=2, sort_keys=True)
    written.write_text(text + "\n", encoding="utf-8")
    os.replace(written, output / "library.json")
    for old in output.glob("cuda_ext-*.so"):
        if old != library:
            old.unlink()
    return library


def remedy(checkout: bool) -> str:
    """The remedy for a library that is missing or does not fit: of a checkout or of an installed wheel."""
    if checkout:
        return "run `make ext`"
    return "install a wheel of reread-kernels that holds it (`make wheel` in a checkout builds one)"


def remedy_for_gpu(checkout: bool) -> str:
    """The same where the library has no code for the GPU."""
    if checkout:
        return "add it to ARCHITECTURES in cuda_ext/build.py and run `make ext`"
    return "this wheel has no kernels for the GPU; a checkout with the GPU in cuda_ext/build.py builds one that has"


def capabilities(gpus: Sequence[Architecture] = ARCHITECTURES) -> list[list[int]]:
    """Return ``gpus`` as library.json names them, [[major, minor], ...]."""
    return [list(gpu[:2]) for gpu in gpus]


def kernel_sources() -> list[Path]:
    """The kernels, one .cu file each."""
    return sorted(SOURCES.glob("*/*.cu"))


def source_key() -> str:
    """Return a key of the sources and flags, 16 hex digits; the compiler and ``--gpu`` are no part of it."""
    files = [*kernel_sources(), *sorted(SOURCES.rglob("*.cuh"))]
    digests = {path.relative_to(SOURCES).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    text = json.dumps([digests, compile_flags(include=False)], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ptx_of(gpus: Sequence[Architecture]) -> tuple[int, int]:
    """Return the compute capability that a library for ``gpus`` contains PTX of."""
    return PTX if PTX in gpus else gpus[-1][:2]


def compile_flags(include: bool = True, gpus: Sequence[Architecture] = ARCHITECTURES) -> list[str]:
    names = ["".join(map(str, gpu)) for gpu in gpus]
    codes = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in names]
    ptx = "".join(map(str, ptx_of(gpus)))
    codes.append(f"-gencode=arch=compute_{ptx},code=compute_{ptx}")
    where = [f"-I{torch_folder() / 'include'}"] if include else []
    return [*FLAGS, *codes, *where]


def link_flags() -> list[str]:
    # The CUDA part of PyTorch is not named: the CPU build, with which one can compile, has none. Loading makes its
    # symbols known first (see library.py). CUDA's runtime is linked in, nvcc's default.
    # The linker adds an empty image, for the GPU named here: unnamed, it would be one that the kernels do not serve.
    oldest = "".join(map(str, ARCHITECTURES[0]))
    return [f"-arch=sm_{oldest}", f"-L{torch_folder() / 'lib'}", "-lc10", "-ltorch_cpu"]


def torch_folder() -> Path:
    return Path(torch.__file__).resolve().parent


def toolkit() -> str:
    """Return the version of the CUDA toolkit to install: PyTorch's, or OLDEST_NVCC where that is later."""
    wanted = tuple(map(int, (torch.version.cuda or "13.0").split(".")))
    return ".".join(map(str, max(wanted, OLDEST_NVCC)))


def find_nvcc() -> str:
    """nvcc of CUDA_HOME; where that is not set, of the PATH, else where CUDA's installer puts it."""
    home = os.environ.get("CUDA_HOME")
    for candidate in [f"{home}/bin/nvcc"] if home else ["nvcc", "/usr/local/cuda/bin/nvcc"]:
        if nvcc := shutil.which(candidate):
            return os.path.abspath(nvcc)
    if home:
        raise KernelError(
            f"CUDA_HOME is {home}, which has no program bin/nvcc: point it at a CUDA toolkit, or unset it, and run "
            f"`make ext`"
        )
    raise KernelError(
        f"nvcc, CUDA's compiler, is neither on the PATH nor in /usr/local/cuda: install the CUDA toolkit {toolkit()} "
        f"(https://developer.nvidia.com/cuda-downloads) and run `CUDA_HOME=/usr/local/cuda make ext`"
    )


def check_nvcc(nvcc: str) -> tuple[int, int]:
    """Return nvcc's release; KernelError if it is too old or of another major version than PyTorch's CUDA."""
    version = re.search(r"release (\d+)\.(\d+)", run([nvcc, "--version"]))
    if not version:
        raise KernelError(f"{nvcc} --version names no release: point CUDA_HOME at a CUDA toolkit and run `make ext`")
    release = (int(version[1]), int(version[2]))
    text = ".".join(map(str, release))
    wanted = torch.version.cuda
    if wanted and int(wanted.split(".")[0]) != release[0]:
        raise KernelError(
            f"nvcc {text} ({nvcc}) does not fit PyTorch {torch.__version__}, built with CUDA {wanted}: install the "
            f"CUDA toolkit {toolkit()} and run `CUDA_HOME=/usr/local/cuda-{toolkit()} make ext`"
        )
    if release < OLDEST_NVCC:
        raise KernelError(
            f"nvcc {text} ({nvcc}) does not know every GPU that the library is built for: install the CUDA toolkit "
            f"{toolkit()} and run `CUDA_HOME=/usr/local/cuda-{toolkit()} make ext`"
        )
    return release


def compile_sources(nvcc: str, folder: Path, gpus: Sequence[Architecture]) -> dict[Path, Path]:
    """Compile each kernel into an object in ``folder``: by ninja, which leaves out what is up to date, else by nvcc.

    Returns the objects by their sources.
    """
    folder.mkdir(parents=True, exist_ok=True)
    objects = {source: folder / f"{source.stem}.o" for source in kernel_sources()}
    flags = compile_flags(gpus=gpus)
    ninja = shutil.which("ninja")
    if ninja is None:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda pair: run([nvcc, "-c", str(pair[0]), "-o", str(pair[1]), *flags]), objects.items()))
        return objects

    def escaped(text: object) -> str:
        return re.sub(r"([$ :])", r"$\1", str(text))

    # Ninja quotes $in and $out for the shell.
    rule = shlex.join([nvcc, *flags]).replace("$", "$$")
    lines = [
        "rule compile",
        f"  command = {rule} -MD -MF $out.d -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        *(f"build {escaped(object_)}: compile {escaped(source)}" for source, object_ in objects.items()),
    ]
    (folder / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run([ninja, "-C", str(folder), "--quiet"])
    return objects


def run(arguments: list[str]) -> str:
    """Run a command and return what it printed; KernelError with its last lines if it failed."""
    try:
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise KernelError(
            f"{arguments[0]} does not run ({error.strerror}): install it again, or set CUDA_HOME or the PATH to another"
        ) from None
    if done.returncode:
        missing = "No such file or directory" in done.stdout and "g++" in done.stdout
        if missing or "Cannot find compiler" in done.stdout:
            raise KernelError("nvcc finds no C++ compiler: install one (`apt-get install g++`) and run `make ext`")
        lines = "\n".join(done.stdout.strip().splitlines()[-20:])
        raise KernelError(f"{Path(arguments[0]).name} failed with exit code {done.returncode}:\n{lines}")
    return done.stdout


def built() -> dict[str, Any] | None:
    """The content of library.json in ``BUILT``, or of the Hub's metadata.json.

    None if there is neither, or if library.json is damaged: with it the library is as good as not built.
    """
    try:
        about = json.loads((BUILT / "library.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return built_for_the_hub(SOURCES) if (SOURCES / "metadata.json").is_file() else None
    except ValueError:
        return None
    return about if isinstance(about, dict) else None


def built_for_the_hub(folder: Path) -> dict[str, Any]:
    """The metadata.json of a package that Hugging Face's kernel-builder built (hub.py), as library.json has it."""
    metadata = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))
    # "9.0a", "10.0+PTX"
    gpus = sorted([*map(int, re.findall(r"\d+", gpu)), "+PTX" in gpu] for gpu in metadata["backend"]["archs"])
    return {
        "file": str(folder / f"{metadata['id']}.abi3.so"),
        "sources": metadata["id"],
        # `kernels` loads the package that was built for this PyTorch's CUDA.
        "nvcc": torch.version.cuda,
        "architectures": [gpu[:2] for gpu in gpus],
        "ptx": next(gpu[:2] for gpu in gpus if gpu[2]),
    }


if __name__ == "__main__":
    command(main)()
