"""Train and evaluate a golden case with changed code:  python -m tests.reread.storage.mutation CASE FOLDER

Reads one JSON object per line, {"file", "source"}: a file of this project that has another text. Each is run by a fork
of this process, which has imported the libraries alone. Writes one JSON value per line: the sha256 of weights, history
and evaluation, or null where the run failed. The first line is of the unchanged code, with the functions that it
called: {"digest", "called": [[file, line], ...]}.
"""

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import signal
import sys
import warnings
from importlib.machinery import SourceFileLoader
from pathlib import Path

import numpy  # noqa: F401
import safetensors.torch  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch

ROOT = Path(__file__).resolve().parents[3]
# Of a run with a change, which may loop forever: of the CPU, and of the clock where it waits.
MOST_CPU_SECONDS, MOST_SECONDS = 60, 600


class Changed(SourceFileLoader):
    """Loads one module from another text than its file's."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str):
        return compile(self.text, self.path, "exec")


class Finder:
    """Finds the module of a changed file."""

    def __init__(self, file: str, text: str) -> None:
        self.path, self.text = ROOT / file, text
        self.name = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        folder = [str(self.path.parent)] if self.path.name == "__init__.py" else None
        loader = Changed(name, str(self.path), self.text)
        return importlib.util.spec_from_file_location(name, self.path, loader=loader, submodule_search_locations=folder)


def digest_of_run(case: str, folder: Path, data: Path) -> str:
    from reread.evaluation.run import evaluate_run
    from reread.storage.files import write_json
    from reread.training import run
    from reread.training.progress import Progress
    from reread.training.settings import TrainingJob
    from tests.golden.cases import CASES, job
    from tests.reads import every_test_split

    folder.mkdir()
    about = job(CASES[case], str(data), str(folder / "golden"))
    write_json(folder / "job.json", about)
    read = TrainingJob.read(folder / "job.json")
    run.run(read, about, Progress(read, None, quiet=True))
    with every_test_split():
        evaluation = evaluate_run(folder / "golden", data)
    digest = hashlib.sha256()
    for path in (
        *(folder / "golden" / name for name in ("best.safetensors", "history.csv")),
        *sorted(evaluation.iterdir()),
    ):
        if path.name not in ("latency.json", "digests.json"):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def in_a_fork(case: str, folder: Path, data: Path, change: dict | None) -> dict | None:
    """Return what a fork finds, None where it fails."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            warnings.simplefilter("ignore")
            called = set()
            if change:
                signal.setitimer(signal.ITIMER_PROF, MOST_CPU_SECONDS)
                signal.alarm(MOST_SECONDS)
                sys.meta_path.insert(0, Finder(change["file"], change["source"]))
            else:
                sys.setprofile(lambda frame, *_: called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno)))
            digest = digest_of_run(case, folder, data)
            sys.setprofile(None)
            files = [[os.path.relpath(file, ROOT), line] for file, line in called if file.startswith(f"{ROOT}/")]
            with open(writer, "w", encoding="utf-8") as stream:
                json.dump({"digest": digest, "called": files, "modules": libraries()}, stream)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader, "rb") as stream:
        answer = stream.read()
    os.waitpid(child, 0)
    return json.loads(answer) if answer else None


def libraries() -> list[str]:
    """Return the imported modules that are not of this project."""
    return [name for name in sys.modules if name != "__main__" and not (ROOT / name.split(".")[0]).is_dir()]


def main() -> None:
    case, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    unchanged = in_a_fork(case, folder / "unchanged", folder / "data", None)
    print(json.dumps(unchanged), flush=True)
    for name in unchanged["modules"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for number, line in enumerate(sys.stdin):
        answer = in_a_fork(case, folder / str(number), folder / "data", json.loads(line))
        print(json.dumps(answer and answer["digest"]), flush=True)


if __name__ == "__main__":
    main()
