"""Write the kernels as a project for Hugging Face's kernel-builder: ``python -m cuda_ext.hub FOLDER``.

The builder (https://github.com/huggingface/kernels) compiles the project for the Hub, and ``kernels.get_kernel`` loads
the package from there without installing it. One process may load several builds, so each has a name of its own: all
imports are relative, and all operations are in one namespace, which the builder's module ``_ops`` names. In it the
operations that Python registers have a prefix, because compiled ones have the same names. The CUDA sources are copied
as they are. Nothing is compiled.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

from cuda_ext import build, wheel
from cuda_ext.errors import KernelError, command

PREFIX = "checked_"
# What names a namespace in the modules' text, and what stands there in the project.
REWRITTEN = (
    (r"torch\.ops\.reread_kernels_compiled", "ops"),
    (r"torch\.ops\.reread_kernels\.", f"ops.{PREFIX}"),
    (r'Library\("reread_kernels"', "Library(ops.name"),
    (r'f"reread_kernels::\{name\}"', "add_op_namespace_prefix(name)"),
    (r'"reread_kernels::(\w+)"', rf'add_op_namespace_prefix("{PREFIX}\1")'),
    (r"( +)(name = schema\.split)", rf'\1schema = f"{PREFIX}{{schema}}"\n\1\2'),
)
# https://github.com/huggingface/kernels/blob/main/docs/source/builder/writing-kernels.md
CONFIGURATION = """\
[general]
name = "{name}"
version = {version}
edition = 5
license = "Apache-2.0"
backends = ["cuda"]

[general.cuda]
minver = "{oldest_nvcc}"

[torch]
src = ["torch-ext/torch_binding.cpp"]

[torch.stable-abi]
cuda = "{torch_target}"

[kernel.{package}]
backend = "cuda"
depends = ["torch"]
cuda-capabilities = {capabilities}
# The sources' name of their namespace becomes the build's.
cuda-flags = ["-Dreread_kernels_compiled=TORCH_EXTENSION_NAME"]
src = {sources}
"""
BINDING = """\
// Python imports the library as a module without names; each CUDA source registers its own operations.
#include "registration.h"

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""
FLAKE = """\
{
  inputs.kernel-builder.url = "github:huggingface/kernels";
  outputs =
    { self, kernel-builder }:
    kernel-builder.lib.genKernelFlakeOutputs {
      inherit self;
      path = ./.;
    };
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cuda_ext.hub", description="Write a project for kernel-builder.")
    parser.add_argument("folder", type=Path, help="a new or empty folder, which gets the project")
    arguments = parser.parse_args()
    write(arguments.folder)
    print(f"wrote {arguments.folder}: `kernel-builder build-and-copy` there compiles it")


def write(folder: Path) -> None:
    """Write the project to ``folder``. KernelError where that has files: some could be of other sources."""
    folder = build.writable(folder)
    if any(folder.iterdir()):
        raise KernelError(f"{folder} is not empty: name a new folder")
    package = folder / "torch-ext" / wheel.PACKAGE
    for module in wheel.copy_package(package):
        depth = len(module.relative_to(package).parts)
        module.write_text(wheel.renamed(on_the_hub(module.read_text(encoding="utf-8"), depth)), encoding="utf-8")
    operations = sorted(path.parent.name for path in package.glob("*/__init__.py"))
    with (package / "__init__.py").open("a", encoding="utf-8") as start:
        start.write(f"\nfrom . import {', '.join(operations)}, library\nfrom .gru.module import GRU\n")
        start.write(f'\n__version__ = "{wheel.VERSION}"\n__all__ = {json.dumps(["GRU", *operations, "library"])}\n')
    for source in sources():
        copy = folder / source.relative_to(wheel.ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    shutil.copy(wheel.ROOT / "LICENSE", folder)
    files = {"build.toml": configuration(), "flake.nix": FLAKE, "torch-ext/torch_binding.cpp": BINDING}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


def on_the_hub(text: str, depth: int) -> str:
    """A module's text, ``depth`` names deep in the package, with relative imports and with the build's namespace."""
    package = "." * depth
    text = re.sub(r"^from cuda_ext\.?(\S*) import", rf"from {package}\1 import", text, flags=re.MULTILINE)
    before = text
    for pattern, replacement in REWRITTEN:
        text = re.sub(pattern, replacement, text)
    if text == before:
        return text
    names = f"import torch\n\nfrom {package}_ops import add_op_namespace_prefix, ops"
    return re.sub(r"^import torch$", names, text, count=1, flags=re.MULTILINE)


def sources() -> list[Path]:
    """The CUDA sources of a package: all but what only tests call (common/), as in a wheel's library."""
    operations = [path for path in build.kernel_sources() if path.parent.name != "common"]
    return operations + sorted(build.SOURCES.glob("*/*.cuh"))


def configuration() -> str:
    """The text of build.toml: TOML has the lists and strings of JSON."""
    capabilities = [
        "{}.{}".format(gpu[0], "".join(map(str, gpu[1:]))) + ("+PTX" if gpu == build.PTX else "")
        for gpu in build.ARCHITECTURES
    ]
    return CONFIGURATION.format(
        name=wheel.PACKAGE.replace("_", "-"),
        version=wheel.VERSION.split(".")[0],
        oldest_nvcc=".".join(map(str, build.OLDEST_NVCC)),
        torch_target=build.TORCH_TARGET,
        package=wheel.PACKAGE,
        capabilities=json.dumps(capabilities),
        sources=json.dumps([path.relative_to(wheel.ROOT).as_posix() for path in sources()], indent=2),
    )


if __name__ == "__main__":
    command(main)()
