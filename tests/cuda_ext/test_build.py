"""The library: compiled by nvcc for every GPU it names, refused in one line where it cannot be, loaded if it fits."""

import json
import os
import re
import shutil
from types import SimpleNamespace

import pytest
import torch

from cuda_ext import build, library
from cuda_ext.errors import KernelError

needs_nvcc = pytest.mark.skipif(
    shutil.which("nvcc") is None and not os.access("/usr/local/cuda/bin/nvcc", os.X_OK), reason="there is no nvcc"
)


@needs_nvcc
def test_the_kernels_compile_and_are_published_whole(tmp_path):
    # In the checkout's own folder, as `make ext` does, for the GPUs that it was made for: what is up to date there is
    # not compiled again.
    about = json.loads(path.read_text(encoding="utf-8")) if (path := build.BUILT / "library.json").exists() else {}
    gpus = [gpu for gpu in build.ARCHITECTURES if list(gpu[:2]) in about.get("architectures", [[9, 0]])]
    library_file = build.build(gpus=gpus, wheel=tmp_path)
    built = build.built()
    assert built == json.loads((build.BUILT / "library.json").read_text(encoding="utf-8"))
    assert built["file"] == library_file.name
    assert built["sources"] == build.source_key()
    assert built["architectures"] == build.capabilities(gpus)
    content = library_file.read_bytes()
    assert content.startswith(b"\x7fELF")
    for kernel in ("vector_add", "swish", "conv2d", "gru_forward"):
        assert f"{kernel}(Tensor".encode() in content
    assert b"reread_kernels_compiled" in content
    # A wheel's library is the same, without what only tests call.
    of_wheel = (tmp_path / library_file.name).read_bytes()
    assert json.loads((tmp_path / "library.json").read_text(encoding="utf-8")) == built
    assert b"vector_add(Tensor" in of_wheel
    assert [b"limit_shared_memory(int" in each for each in (content, of_wheel)] == [True, False]
    # Nothing half-made and no older library is left beside it.
    assert [path.name for path in build.BUILT.glob("*.so")] == [library_file.name]
    compiled = {path: path.stat().st_mtime_ns for path in (build.BUILT / "objects").glob("*.o")}
    assert {path.stem for path in build.kernel_sources()} <= {path.stem for path in compiled}
    if shutil.which("ninja"):
        assert build.build(gpus=gpus) == library_file
        assert {path: path.stat().st_mtime_ns for path in compiled} == compiled, "what is up to date was compiled again"


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Return a function that makes a folder of sources, which stands for the kernels' own and compiles in a second."""

    def make(name):
        folder = tmp_path / name / "one"
        folder.mkdir(parents=True)
        (folder / "one.cu").write_text('#include "one.cuh"\nextern "C" const char* one() { return ONE; }\n')
        (folder / "one.cuh").write_text('#define ONE "the first text"\n')
        monkeypatch.setattr(build, "SOURCES", folder.parent)
        return folder / "one.cuh"

    return make


@needs_nvcc
@pytest.mark.parametrize("name", ["a folder", "it's a folder"])
def test_the_path_of_a_checkout_may_have_spaces_and_apostrophes(name, small):
    header = small(name)
    output = build.SOURCES / "_build"
    library_file = build.build(output, [(8, 0)])
    assert b"the first text" in library_file.read_bytes()
    compiled = (output / "objects" / "one.o").stat().st_mtime_ns
    build.build(output, [(8, 0)])
    # Ninja reads no apostrophe in a compiler's list of headers, and compiles again.
    if shutil.which("ninja") and "'" not in name:
        assert (output / "objects" / "one.o").stat().st_mtime_ns == compiled
    header.write_text('#define ONE "the second text"\n')
    assert b"the second text" in build.build(output, [(8, 0)]).read_bytes()


@needs_nvcc
def test_the_folder_of_the_library_may_be_relative(small, monkeypatch):
    small("sources")
    monkeypatch.chdir(build.SOURCES)
    library_file = build.build(build.Path("output"), [(8, 0)])
    assert library_file.is_absolute() and library_file.parent == build.SOURCES / "output" and library_file.is_file()


@needs_nvcc
@pytest.mark.parametrize("code", [0, 1])
def test_a_source_that_is_edited_during_a_build_is_not_published_under_the_old_key(small, tmp_path, monkeypatch, code):
    """The object is newer than the edit that it lacks, and the compiler succeeds or then fails."""
    header = small("sources")
    nvcc = build.find_nvcc()
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "nvcc"
    script.write_text(
        f"""#!/bin/sh
{nvcc} "$@" || exit
case " $* " in *" -c "*) grep -q first {header} || exit 0;; *) exit 0;; esac
sed -i s/first/second/ {header}
sleep 0.01
for object do case "$object" in *.o) touch "$object";; esac; done
exit {code}
"""
    )
    script.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    output = tmp_path / "output"
    with pytest.raises(KernelError, match=f"^a source in {build.SOURCES} was edited during the build: build again$"):
        build.build(output, [(8, 0)])
    assert not (output / "library.json").exists() and not list(output.glob("*.so"))
    assert b"the second text" in build.build(output, [(8, 0)]).read_bytes()


def test_no_two_kernels_share_a_name():
    stems = [path.stem for path in build.kernel_sources()]
    assert len(set(stems)) == len(stems), "their objects would overwrite each other"


def test_every_gpu_gets_machine_code_and_later_ones_ptx():
    flags = [flag for flag in build.compile_flags() if flag.startswith("-gencode")]
    assert [flag.split("code=")[-1] for flag in flags] == ["sm_80", "sm_90a", "sm_100", "sm_120", "compute_100"]
    assert build.compile_flags(gpus=[(8, 0)])[-2].endswith("code=compute_80")


def nvcc_of(folder, text, code=0):
    """A compiler that says ``text`` and gives ``code``."""
    (folder / "bin").mkdir()
    path = folder / "bin" / "nvcc"
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_nvcc_of_cuda_home_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    nvcc = nvcc_of(tmp_path, "Cuda compilation tools, release 13.0, V13.0.88")
    assert build.find_nvcc() == nvcc
    assert build.check_nvcc(nvcc) == (13, 0)


@pytest.mark.parametrize("there", ["nothing", "a folder"])
def test_a_cuda_home_without_nvcc_is_named(tmp_path, monkeypatch, there):
    if there == "a folder":
        (tmp_path / "bin" / "nvcc").mkdir(parents=True)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(KernelError, match=f"^CUDA_HOME is {tmp_path}, which has no program bin/nvcc: .*make ext`$"):
        build.find_nvcc()


def test_an_nvcc_that_does_not_run_is_one_line(tmp_path):
    nvcc = nvcc_of(tmp_path, "")
    build.Path(nvcc).write_text("")
    with pytest.raises(KernelError, match=rf"^{nvcc} does not run \(Exec format error\): install it again, .*$"):
        build.check_nvcc(nvcc)


@pytest.mark.parametrize("output", ["file", "file/folder", "/proc"])
def test_an_output_that_cannot_be_written_is_one_line(tmp_path, monkeypatch, output):
    (tmp_path / "file").touch()
    monkeypatch.setattr(torch.version, "cuda", None)
    nvcc_of(tmp_path, "release 13.0, V13.0.88")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(KernelError, match=f"^{tmp_path / output} is no folder .*: name another one$"):
        build.build(tmp_path / output)


def test_a_missing_nvcc_is_one_line_with_the_command(monkeypatch):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setattr(build.os, "access", lambda *_: False)
    with pytest.raises(KernelError, match="^nvcc, CUDA's compiler, is neither .*make ext`$"):
        build.find_nvcc()


@pytest.mark.parametrize(
    ("said", "cuda", "message"),
    [
        (
            "release 12.9, V12.9.1",
            "13.0",
            "nvcc 12.9 .* does not fit PyTorch .* built with CUDA 13.0: .*cuda-13.0 make ext",
        ),
        (
            "release 13.0, V13.0.88",
            "12.8",
            "nvcc 13.0 .* does not fit PyTorch .* built with CUDA 12.8: .*cuda-12.8 make ext",
        ),
        ("release 12.4, V12.4.1", None, "nvcc 12.4 .* does not know every GPU .*toolkit 13.0 .* make ext"),
        ("no compiler at all", None, "names no release: .*make ext"),
    ],
)
def test_an_nvcc_that_does_not_fit_is_one_line_with_the_command(tmp_path, monkeypatch, said, cuda, message):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with pytest.raises(KernelError) as error:
        build.check_nvcc(nvcc_of(tmp_path, said))
    assert re.search(message, str(error.value))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("cuda", [None, "12.6", "12.9", "13.0"])
def test_no_toolkit_is_recommended_that_is_then_refused(tmp_path, monkeypatch, cuda):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with monkeypatch.context() as nowhere:
        nowhere.setattr(build.os, "access", lambda *_: False)
        with pytest.raises(KernelError) as error:
            build.find_nvcc()
    messages = [str(error.value)]
    # Too old, and of another major version.
    for said in ("12.4", "14.0" if cuda else "11.0"):
        (tmp_path / said).mkdir()
        with pytest.raises(KernelError) as error:
            build.check_nvcc(nvcc_of(tmp_path / said, f"release {said}, V{said}.1"))
        messages.append(str(error.value))
    for number, message in enumerate(messages):
        (recommended,) = re.findall(r"toolkit (\d+\.\d+) ", message)
        folder = tmp_path / f"recommended {number}"
        folder.mkdir()
        nvcc = nvcc_of(folder, f"release {recommended}, V{recommended}.1")
        assert build.check_nvcc(nvcc) == tuple(map(int, recommended.split(".")))


def test_a_missing_c_compiler_is_one_line_with_the_command(tmp_path):
    nvcc = nvcc_of(tmp_path, "nvcc fatal   : Cannot find compiler cl in PATH", 1)
    with pytest.raises(KernelError, match=r"^nvcc finds no C\+\+ compiler: .*make ext`$"):
        build.run([nvcc, "-c", "kernel.cu"])


def test_what_the_compiler_says_is_passed_on(tmp_path):
    nvcc = nvcc_of(tmp_path, "kernel.cu(3): error: expected a declaration", 2)
    with pytest.raises(KernelError, match=r"nvcc failed with exit code 2:\nkernel.cu\(3\): error"):
        build.run([nvcc, "-c", "kernel.cu"])


@pytest.mark.parametrize(
    ("capability", "runs"),
    [((8, 0), True), ((8, 9), True), ((9, 0), True), ((10, 3), True), ((12, 0), True), ((7, 5), False)],
)
def test_which_gpus_the_library_runs_on(capability, runs):
    assert library.runs_on(build.capabilities(), build.PTX, capability) is runs


@pytest.mark.parametrize(
    ("gpu", "capability", "runs"),
    [((8, 6), (8, 0), False), ((8, 0), (8, 9), True), ((8, 0), (9, 0), True), ((9, 0), (10, 0), True)],
)
def test_a_library_for_one_gpu_serves_later_ones_and_no_older_one(gpu, capability, runs):
    """A Hopper runs what the driver makes of PTX for Ampere: tests/cuda_ext/test_older_code_gpu.py."""
    assert library.runs_on([gpu], build.ptx_of([gpu]), capability) is runs


@pytest.mark.parametrize(
    ("gpus", "capability", "has"),
    [
        (build.ARCHITECTURES, (9, 0), True),
        (build.ARCHITECTURES, (8, 9), False),
        (build.ARCHITECTURES, (10, 0), False),
        ([(8, 0)], (9, 0), False),
    ],
)
def test_only_a_hopper_with_its_own_code_multiplies_by_warpgroups(monkeypatch, gpus, capability, has):
    monkeypatch.setattr(build, "built", lambda: {"architectures": build.capabilities(gpus)})
    monkeypatch.setattr(library, "unfit", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert library.has_warpgroups.__wrapped__(torch.device("cuda", 0)) is has


def unfit_on_a_gpu(monkeypatch, built):
    """Why the library, as library.json would describe it, does not serve a Turing GPU."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(build, "built", lambda: built)
    return library.unfit.__wrapped__(torch.device("cuda", 0))


def test_a_library_that_does_not_fit_says_why_and_what_fixes_it(monkeypatch):
    assert unfit_on_a_gpu(monkeypatch, None) == "the library is not built: run `make ext`"
    stale = {"sources": "0" * 16, "architectures": [[8, 0]], "ptx": [8, 0], "file": "none.so"}
    assert unfit_on_a_gpu(monkeypatch, stale) == "the library was built from other sources: run `make ext`"
    other = {**stale, "sources": build.source_key(), "nvcc": "13.1"}
    assert re.fullmatch(
        r"Tesla T4 is sm_75 and the library holds sm_80: add .*build.py and run `make ext`",
        unfit_on_a_gpu(monkeypatch, other),
    )
    older = {**other, "nvcc": "12.9"}
    assert re.fullmatch(
        r"the library was compiled by nvcc 12.9 and PyTorch \S+ has CUDA 13.0, another major version: run `make ext`",
        unfit_on_a_gpu(monkeypatch, older),
    )
    # In a wheel there are no sources, and nothing to make.
    monkeypatch.setattr(build, "kernel_sources", list)
    for about in (None, {}, other, older):
        reason = unfit_on_a_gpu(monkeypatch, about)
        assert "wheel" in reason and "make ext" not in reason


@pytest.fixture
def gpu_with(monkeypatch):
    """A GPU of so many bytes of shared memory per block, with a library that fits."""

    def make(allowed, architectures=None):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A10")
        monkeypatch.setattr(library, "unfit", lambda device: None)
        monkeypatch.setattr(library, "_shared_memory", lambda device: allowed)
        about = {"sources": "0123456789abcdef", "architectures": architectures or build.capabilities()}
        monkeypatch.setattr(build, "built", lambda: about)
        return torch.device("cuda", 0)

    return make


def test_an_operation_that_needs_more_shared_memory_than_the_gpu_has_runs_its_reference(gpu_with):
    device = gpu_with(101_376)
    wide = "attention_pooling of float32 to 104 wide"
    with pytest.warns(library.ReferenceWarning, match=f"{wide} takes 161,168 bytes .* NVIDIA A10 has 101,376"):
        assert library.kernel("attention_pooling", of_device(device), wide) is None
    library.strict(True)
    with pytest.raises(library.KernelError, match=wide):
        library.kernel("attention_pooling", of_device(device), wide)


def of_device(device, dtype=torch.float32):
    """The attributes of a tensor on a GPU that ``kernel`` reads, where there may be no GPU."""
    return SimpleNamespace(device=device, dtype=dtype)


def test_float64_runs_its_reference_on_a_gpu_without_a_word(gpu_with, recwarn):
    device = gpu_with(232_448)
    library.strict(True)
    assert library.kernel("swish", of_device(device, torch.float64)) is None
    assert not recwarn


def test_the_record_of_a_run_names_the_operations_that_run_their_reference(gpu_with):
    assert library.kernels(gpu_with(232_448)) == "extension 0123456789abcdef"
    assert library.kernels(gpu_with(166_912)).endswith("; reference: attention_pooling of float32 to 128 wide")
    on_ada = library.kernels(gpu_with(101_376)).partition("; reference: ")[2].split(", ")
    # In half precision every width has its kernel on every GPU.
    assert on_ada == ["attention_pooling of float32 to 104 wide", "attention_pooling of float32 to 128 wide"]


def test_the_record_of_a_run_names_the_gpus_of_a_library_for_some(gpu_with):
    record = library.kernels(gpu_with(232_448, [[8, 0]]))
    assert record == "extension 0123456789abcdef; compiled for sm_80"
    assert library.implementation(record) == "extension; compiled for sm_80"


def test_the_key_of_the_library_and_the_reason_for_a_reference_are_no_part_of_a_machine(gpu_with):
    assert library.implementation(library.kernels(gpu_with(232_448))) == "extension"
    assert library.implementation("reference (the library is not built: run `make ext`)") == "reference"


def test_a_cpu_build_of_pytorch_is_named(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "CPU build: run `pip install" in library.unfit.__wrapped__(torch.device("cuda", 0))


def test_a_library_that_does_not_load_says_so(tmp_path):
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    assert re.fullmatch(r"the library does not load with PyTorch .*: run `make ext`", library._load.__wrapped__(broken))


def test_what_is_built_is_looked_up_where_the_library_is_loaded_from(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "BUILT", tmp_path)
    assert build.built() is None
    (tmp_path / "library.json").write_text('{"file": "kernels.so"}', encoding="utf-8")
    assert build.built() == {"file": "kernels.so"}


@pytest.mark.parametrize("content", [b"", b'{"file": "cuda_ext-01', b"null", b"[1]", b"\xff"])
def test_a_damaged_library_json_is_a_reason_for_the_reference(monkeypatch, tmp_path, content):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(build, "BUILT", tmp_path)
    (tmp_path / "library.json").write_bytes(content)
    assert library.unfit.__wrapped__(torch.device("cuda", 0)) == "the library is not built: run `make ext`"
