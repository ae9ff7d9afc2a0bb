"""Prediction from a registered model: the command as a real process, and a real scoring server over HTTP."""

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from selenium.webdriver.support.ui import WebDriverWait

from reread.commands.app import main
from reread.commands.predict import _readable
from reread.preprocessing.raw import About, add_data_set
from reread.preprocessing.raw_text import Document, TextRows
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.prepared import SPLITS, open_prepared
from reread.storage.source import ROOT
from reread.tracking import versions
from reread.tracking.registry import load_model, log_baseline, log_model, set_champion
from reread.tracking.runs import open_tracking
from tests.conftest import clean_environment, run_reread
from tests.reread.tracking.comparison import browser, missing
from tests.reread.tracking.examples import evaluate_run, finish_run, make_job, prepared_images, prepared_text
from tests.reread.tracking.test_served_baseline import fitted
from tests.rooms import copy_rooms
from tests.servers import auth_of

# prepared_text keeps 3 sentences of 6 words: this is cut.
TEXT = "Return the sum of two numbers. Both must be positive."
MOST_WORDS = 18
SHORT = "Open a file. Close it afterwards."
BASELINES = ("tf-idf", "nb-svm", "char-svm")


@dataclass(frozen=True)
class Folder:
    """A project folder with registered models in it, and nothing else of the project."""

    directory: Path

    def predict(self, *arguments: str, given: bytes = b"", code: int = 0) -> str:
        """The command's stdout; where it is refused, its stderr."""
        done = run_reread("predict", *arguments, folder=self.directory, given=given)
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {**clean_environment(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, empty_databases):
    """Registered: of the data set snippets a HAN (version 1) and a flat GRU (2, the champion); of dots a DenseNet; of
    snippets-single-label, which are the same rows, the baselines."""
    directory = tmp_path_factory.mktemp("registered")
    shutil.copy2(empty_databases / "mlflow.db", directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        tracking = open_tracking()
        text, images = prepared_text(directory), prepared_images(directory)
        for prepared, model in ((text, "han"), (text, "gru_flat"), (images, "densenet")):
            job = make_job(directory, prepared, model)
            run = finish_run(job, description=read_json(prepared / "prepared.json"))
            version = log_model(tracking, tracking.record(job, evaluate_run(run)), run)
            set_champion(tracking, job.data, version)
        for name in BASELINES:
            log_baseline(tracking, "trial", name, fitted(directory, name, open_prepared(text)), open_prepared(text))
    return Folder(directory)


def test_of_a_variant_the_best_version_answers_and_not_the_newest(folder, monkeypatch):
    """A trial of a small experiment registers its networks too."""
    monkeypatch.chdir(folder.directory)
    client = open_tracking().client
    best = client.get_model_version("reread-snippets", "1")
    worse = {**best.tags, "validation.score": "0.01"}
    newer = client.create_model_version("reread-snippets", best.source, best.run_id, tags=worse)
    try:
        assert load_model("snippets", variant="han").version == "1"
        assert load_model("snippets", version=newer.version).version == str(newer.version)
    finally:
        client.delete_model_version("reread-snippets", newer.version)
    with pytest.raises(InputError, match="variant 'han' and version 1"):
        load_model("snippets", variant="han", version=1)


def test_the_database_says_what_mlflow_says_of_the_models(folder, monkeypatch):
    monkeypatch.chdir(folder.directory)
    client = open_tracking().client
    gone = client.create_model_version("reread-snippets", client.get_model_version("reread-snippets", "1").source)
    client.delete_model_version("reread-snippets", gone.version)
    read, asked = versions.registered_model("snippets"), versions._at_client("snippets", Path())
    assert read.aliases == asked.aliases and read.aliases["champion"] == "2"
    assert set(read.versions) == set(asked.versions) == {"1", "2"}
    for number, version in read.versions.items():
        other = asked.versions[number]
        assert replace(version, address=other.address) == other
        assert versions.files(version) == versions.files(other) and versions.files(version).is_dir()


def test_a_damaged_database_is_refused_in_one_line(folder, monkeypatch):
    """A bit is flipped in each name of the model and of its table, another in what precedes it, and the file is cut."""
    monkeypatch.chdir(folder.directory)
    path, generator = folder.directory / "mlflow.db", random.Random(0)
    content, refused = path.read_bytes(), []
    damaged = [content[: len(content) * part // 4] for part in range(4)]
    for match in re.finditer(rb"reread-snippets|TABLE registered_model|registered_modelsregistered", content):
        for place, bit in ((match.start(), 7), (match.start() - generator.randrange(1, 12), generator.randrange(8))):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            damaged.append(bytes(changed))
    try:
        for broken in damaged:
            path.write_bytes(broken)
            for variant in (None, "han"):
                try:
                    load_model("snippets", variant=variant)
                except InputError as error:
                    refused.append(str(error))
    finally:
        path.write_bytes(content)
    assert len(refused) > 10 and "\n" not in "".join(refused)
    assert load_model("snippets").version == "2"


def test_a_table_is_read_by_its_column_and_what_is_no_list_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder.directory)
    model = load_model("snippets")
    frame = pd.DataFrame({"text": [TEXT, SHORT]}, index=[7, 3])
    assert model.predict(frame)["label"].tolist() == model.predict([TEXT, SHORT])["label"].tolist()
    for given in ({"text": [TEXT]}, {TEXT}, 3, None, pd.DataFrame({"texts": [TEXT]})):
        with pytest.raises(InputError, match="give the documents as a list of texts"):
            model.predict(given)
    with pytest.raises(InputError, match="row 1 of the column 'text' is null"):
        model.predict([TEXT, pd.NA])


def test_images_of_another_size_or_type_are_refused_in_one_line(folder, monkeypatch):
    monkeypatch.chdir(folder.directory)
    model = load_model("dots")
    _, height, width, channels = model.description["arrays"]["images"]["shape"]
    images = np.zeros((2, height, width, channels), np.uint8)
    assert len(model.predict(images)) == 2
    for given in (images[..., 0], images.astype(np.float32), [[1, 2], [3, 4]]):
        with pytest.raises(InputError, match=rf"uint8 \[N, {height}, {width}, {channels}\], not") as refused:
            model.predict(given)
        assert "\n" not in str(refused.value)


def test_files_of_images_are_answered_in_the_colours_and_the_size_of_the_data(folder, monkeypatch):
    monkeypatch.chdir(folder.directory)
    model = load_model("dots")
    _, height, width, channels = model.description["arrays"]["images"]["shape"]
    pixels = np.random.default_rng(0).integers(0, 256, (2, height, width, channels), np.uint8)
    names = []
    for number, image in enumerate(pixels):
        names.append(str(folder.directory / f"{number}.png"))
        Image.fromarray(image.squeeze()).save(names[-1])
    expected = model.predict(pixels)["label"].tolist()
    printed = folder.predict("--data", "dots", "--json", *names)
    assert [json.loads(line)["label"] for line in printed.splitlines()] == expected
    Image.fromarray(pixels[0].squeeze()).convert("RGB").resize((3 * width, 2 * height)).save(names[0])
    assert folder.predict("--data", "dots", "--file", names[0]).startswith("densenet, version")


def test_a_program_reads_all_of_an_answer(folder):
    file = folder.directory / "documents.txt"
    lines = [SHORT, "", "你好。再见。 مرحبا بالعالم 🙂", "nul \0 in it", "Draw a line. " * 20]
    file.write_bytes("\r\n".join(lines).encode())
    printed = folder.predict("--data", "snippets", "--variant", "han", "--json", "--file", str(file), "--lines")
    rows = [json.loads(line) for line in printed.splitlines()]
    assert len(rows) == len(lines)
    for row in rows:
        assert set(row["probabilities"]) == {"read", "draw"} and sum(row["probabilities"].values()) == pytest.approx(1)
        assert row["probability"] == row["probabilities"][row["label"]]
        assert row["words_read"] == sum(len(sentence["words"]) for sentence in row["attention"]) <= MOST_WORDS
    first, empty, foreign, _, long = rows
    assert 0 < first["words_unknown"] < first["words_read"] and not first["cut"]
    assert (empty["words_read"], empty["words_unknown"], empty["attention"]) == (0, 0, [])
    assert foreign["words_unknown"] == foreign["words_read"] > 6
    assert long["cut"] and long["words_read"] == 3 * 4

    assert folder.predict("--data", "snippets", given=b"\xff", code=2) == (
        "error: standard input is not UTF-8 (byte 0 is 0xff): convert it, with iconv say\n"
    )


def said_here(monkeypatch, capsys, folder: Path, *arguments: str, given: bytes = b"", code: int = 0) -> str:
    """The output of the command, run in this process: stdout or, where it is refused, its one line on stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    with pytest.raises(SystemExit) as ended:
        main(["predict", *arguments])
    printed = capsys.readouterr()
    assert ended.value.code == code, printed.err
    if code:
        assert printed.out == "" and printed.err.startswith("error: ") and printed.err.count("\n") == 1
    return printed.err if code else printed.out


def test_a_person_reads_what_an_answer_rests_on(folder, monkeypatch, capsys):
    def printed(*arguments: str, given: bytes = b"") -> str:
        return said_here(monkeypatch, capsys, folder.directory, "--data", "snippets", *arguments, given=given)

    readable = printed("--version", "1", SHORT, "", "你好\x1b[2J")
    assert readable.startswith("han, version 1 of reread-snippets")
    assert "8 words read, " in readable and "Most attended (of 2 sentences, weight 0." in readable
    assert "There is no word in the document" in readable and "None of its" in readable
    assert "\x1b" not in readable
    long = printed("--version", "1", ("a" * 5_000 + " ") * 40)
    assert "the rest of the document was cut" in long and len(long) < 2000 and "aaa…" in long
    # The champion has no attention. A whole file, and standard input, are one document.
    whole = printed(given=f"{TEXT}\n{TEXT}".encode())
    assert whole.startswith("gru_flat, version 2") and "the rest of the document was cut" in whole
    assert "Most attended" not in whole


@pytest.mark.parametrize("name", BASELINES)
def test_of_a_baseline_a_person_reads_that_nothing_is_known(folder, monkeypatch, capsys, name):
    data = ("--data", "snippets-single-label", "--variant", name)
    said = said_here(monkeypatch, capsys, folder.directory, *data, "", "?!", "Ωψ ψΩ", "Close the file.", TEXT)
    notes = ["There is no word in the document: this is the answer to nothing."] * 2
    notes += ["Nothing in the document is known: an empty one has the same answer."]
    assert [line for line in said.splitlines() if " document" in line] == notes
    printed = said_here(monkeypatch, capsys, folder.directory, *data, "--json", "", "Draw a line.")
    assert [set(json.loads(line)) for line in printed.splitlines()] == [{"label", "probability", "probabilities"}] * 2


def test_the_name_of_a_file_is_a_text_with_a_warning(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.directory)
    Path("two lines.txt").write_text(f"{TEXT}\n{SHORT}\n")
    for texts, warned in ((["two lines.txt"], True), (["lines.txt", "x" * 5000, TEXT], False)):
        with pytest.raises(SystemExit) as ended:
            main(["predict", "--data", "snippets", "--json", *texts])
        printed = capsys.readouterr()
        assert ended.value.code == 0 and len(printed.out.splitlines()) == len(texts)
        warning = "warning: 'two lines.txt' is taken as the text; --file 'two lines.txt' reads the file\n"
        assert printed.err == (warning if warned else "")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(248131.546875, "248132"), (-1234567.8, "-1234568"), (1498.2346, "1498.23"), (0.01234567, "0.0123457"),
     (3.0, "3"), (2.5e12, "2.5e+12")],
)  # fmt: skip
def test_a_number_is_shown_as_a_person_would_write_it(value, shown):
    (line,) = _readable({"prediction": value})
    assert line.plain == shown


@pytest.mark.parametrize(
    ("arguments", "given", "fault"),
    [
        (["--data", "snipets", TEXT], b"", "did you mean 'snippets'?"),
        (["--data", "snippets", "--version", "9", TEXT], b"", "no version 9: choose from 1 (han), 2 (gru_flat)"),
        (["--data", "snippets", "--variant", "ham", TEXT], b"", "did you mean 'han'?"),
        (["--data", "dots", TEXT], b"", "No such file"),
        (["--data", "dots", "--file", "mlflow.db"], b"", "no image that can be read"),
        (["--data", "dots"], b"\x89PNG\r\n", "--data dots has images"),
        (["--data", "dots", "--file", "mlflow.db", "--lines"], b"", "--lines"),
        (["--data", "snippets", "--file", "no.txt"], b"", "'no.txt' cannot be read"),
        (["--data", "snippets", "--file", ""], b"", "'' cannot be read"),
        (["--data", "snippets", "--file", "."], b"", "cannot be read"),
        (["--data", "snippets"], b"a\xff", "standard input is not UTF-8 (byte 1 is 0xff)"),
        (["--data", "snippets", "--lines"], b"ok\nb\xff\n", "line 2 of standard input is not UTF-8"),
        (["--data", "snippets", "--lines", TEXT], b"", "choose one"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(folder, monkeypatch, capsys, arguments, given, fault):
    assert fault in said_here(monkeypatch, capsys, folder.directory, *arguments, given=given, code=2)


def test_where_nothing_is_registered_nothing_is_made(tmp_path, monkeypatch, capsys):
    outside = said_here(monkeypatch, capsys, tmp_path, "--data", "snippets", TEXT, code=2)
    assert outside == "error: params.yaml is missing: run this from the project's folder\n"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "params.yaml").touch()
    said = said_here(monkeypatch, capsys, tmp_path, "--data", "snippets", TEXT, code=2)
    assert "`make run`" in said and "`evaluate_on: test`" in said
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]
    # Of data of one's own the command that trains is another.
    monkeypatch.chdir(tmp_path)
    rows = [Document(f"d{row}", (row % 2,), split, f"Row {row}.") for row, split in enumerate((*SPLITS, *SPLITS))]
    add_data_set("mine", TextRows(About(("a", "b"), "a test", "none"), rows))
    before = sorted(tmp_path.rglob("*"))
    assert "`reread try mine` trains" in said_here(monkeypatch, capsys, tmp_path, "--data", "mine", TEXT, code=2)
    assert sorted(tmp_path.rglob("*")) == before


LOAD = """
import sys, threading
from reread.storage.errors import InputError
from reread.tracking.registry import load_model
path, loaded = list(sys.path), {}
def load(variant):
    loaded[variant] = load_model("snippets", variant=variant)
threads = [threading.Thread(target=load, args=(variant,)) for variant in ("han", "gru_flat")]
for thread in threads: thread.start()
for thread in threads: thread.join()
han, flat = loaded["han"], loaded["gru_flat"]
assert sys.path == path
rows = han.predict(["Draw a line.", "\\ud800"])
print(list(rows), rows.words_read.tolist())
print(list(han.predict(["Draw a line."], attention=False)), len(han.predict([])), list(flat.predict([])))
import models, models.han
print(type(han.predictor.network) is models.han.HierarchicalAttentionNetwork, models.__file__)
print(han.predictor.reader.read.__code__.co_filename)
for wrong in ([3], [None], "Draw a line."):
    try:
        han.predict(wrong)
    except InputError as error:
        print(error)
# Its import takes longer than all else.
assert "mlflow" not in sys.modules
"""


def test_two_threads_load_models_with_the_project_s_code(folder):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOAD],
        cwd=folder.directory, env=folder.environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows, others, network, reader, number, null, single = done.stdout.splitlines()
    seen = "['label', 'probability', 'probabilities', 'words_read', 'words_unknown', 'cut'"
    assert rows == f"{seen}, 'attention'] [4, 1]" and others == f"{seen}] 0 {seen}]"
    assert network == f"True {ROOT / 'models/__init__.py'}" and reader == str(ROOT / "reread/preprocessing/reading.py")
    assert "row 0 of the column 'text' is of type int" in number and "is null" in null and "as a list" in single


CHANGED = """
import sys
from reread.storage.errors import InputError
from reread.tracking.registry import load_model
for variant in ("han", "gru_flat"):
    try:
        print(load_model("snippets", variant=variant).predict(["Draw a line."]).label[0])
    except InputError as error:
        print(error)
"""
SERVED = """
import mlflow, pandas
mlflow.set_tracking_uri("sqlite:///mlflow.db")
model = mlflow.pyfunc.load_model("models:/reread-snippets/1")
import models.han
print(models.__file__, models.han.LENGTH_GROUPS, model.predict(pandas.DataFrame({"text": ["Draw a line."]})).label[0])
"""


def test_where_a_network_s_code_has_changed_only_the_kept_code_serves_it(folder, tmp_path):
    """In a copy of the project: a constant of models/han.py is edited, and a comment of models/gru_flat.py."""
    project = copy_rooms(tmp_path / "project")
    for name, before, after in (
        ("han", "LENGTH_GROUPS = 2", "LENGTH_GROUPS = 3"),
        ("gru_flat", "import torch\n", "# A comment.\nimport torch\n"),
    ):
        file = project / f"models/{name}.py"
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after, 1))

    def lines(code: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], cwd=folder.directory,
            env={**folder.environment, "PYTHONPATH": str(project)}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    refused, answered = lines(CHANGED)
    assert "'han'" in refused and "mlflow models serve -m models:/reread-snippets/1" in refused
    assert answered in ("read", "draw")
    (served,) = lines(SERVED)
    assert "mlartifacts" in served and served.split()[1] == "2" and served.split()[2] in ("read", "draw")


@pytest.fixture(scope="module")
def server(folder):
    """MLflow's scoring server on the HAN; yields a function that posts a body and returns the status and the answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder.directory / "server.txt"
    address = ["--host", "127.0.0.1", "--port", str(port)]
    command = ["models", "serve", "-m", "models:/reread-snippets/1", "--env-manager", "local", *address]
    # The model brings its code: the project is not needed.
    environment = {name: value for name, value in folder.environment.items() if name != "PYTHONPATH"}
    environment["MLFLOW_TRACKING_URI"] = "sqlite:///mlflow.db"
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "mlflow", *command],
            cwd=folder.directory, env=environment, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
        yield lambda body: post(f"http://127.0.0.1:{port}/invocations", body)
    finally:
        # The command's own group: it starts a server below itself.
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    assert "Traceback" not in log.read_text()


def post(url: str, body: object, **headers: str) -> tuple[int, dict]:
    headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def documents(*texts: object, **more: object) -> dict:
    return {"dataframe_split": {"columns": ["text"], "data": [[text] for text in texts]}, **more}


def test_a_server_answers_any_document(server):
    enormous = "Draw a line from one point to another. " * 130_000
    texts = [SHORT, "", " \n\t\u3000", "你好。再见。", "مرحبا بالعالم.", "🙂👍🏽", "a\0b", enormous]
    status, answer = server(documents(*texts))
    assert status == 200
    rows = answer["predictions"]
    assert len(rows) == len(texts)
    assert [row["words_read"] for row in rows[1:3]] == [0, 0]
    for row in rows[3:6]:
        assert row["words_unknown"] == row["words_read"] > 0
    assert [row["cut"] for row in rows] == [*[False] * 7, True]
    assert rows[-1]["words_read"] == MOST_WORDS
    assert sum(sentence["weight"] for sentence in rows[0]["attention"]) == pytest.approx(1, abs=1e-5)

    assert server(documents()) == (200, {"predictions": []})
    status, answer = server(documents(*[SHORT, TEXT] * 5000, params={"attention": False}))
    assert status == 200 and len(answer["predictions"]) == 10_000 and "attention" not in answer["predictions"][0]
    # Batches do not change an answer.
    assert answer["predictions"][-2]["probability"] == pytest.approx(rows[0]["probability"], abs=1e-6)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (documents(TEXT, None), "row 1 of the column 'text' is null"),
        (documents(3), "row 0 of the column 'text' is of type int"),
        (documents([TEXT]), "row 0 of the column 'text' is of type list"),
        (documents("\ud800"), "surrogates not allowed"),
        (documents(TEXT, params={"attention": "no"}), "'attention'"),
        ({"dataframe_split": {"columns": ["words"], "data": [[TEXT]]}}, "missing inputs ['text']"),
        ([TEXT], "must be a JSON dictionary"),
    ],
)
def test_a_server_refuses_what_is_no_text_with_400(server, body, fault):
    status, answer = server(body)
    assert status == 400 and fault in answer["message"] and "stack_trace" not in answer


# The project's own server


@dataclass(frozen=True)
class Served:
    """A running `reread serve model`: its page, its password, and functions that call a path of it."""

    page: str
    password: str

    @property
    def known(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.password}"}

    def get(self, path: str) -> tuple[int, str, str]:
        request = urllib.request.Request(f"{self.page}{path}", headers=self.known)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()

    def predict(self, rows: object, **more: object) -> tuple[int, dict]:
        return post(f"{self.page}/predict", {"rows": rows, **more}, **self.known)


@contextmanager
def serving(folder: Folder, *words: str) -> Iterator[Served]:
    """`reread serve model` until it says where it listens; it must end by SIGTERM with exit code 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "reread", "serve", "model", *words, "--port", str(port)],
        cwd=folder.directory, env={**folder.environment, "PYTHONUNBUFFERED": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said = process.stdout.readline()
        assert f"http://127.0.0.1:{port}" in said, said + process.stdout.read()
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield Served(f"http://127.0.0.1:{port}", auth_of(folder.directory).removeprefix("reread:"))
    finally:
        process.terminate()
        rest = process.communicate(timeout=60)[0]
        assert process.returncode == 0 and "Traceback" not in rest, rest


@pytest.fixture(scope="module")
def served(folder):
    with serving(folder, "snippets", "--version", "1") as server:
        yield server


def test_the_server_answers_as_the_model_does(served, folder, monkeypatch):
    texts = [TEXT, "", SHORT, "你好。"]
    status, answer = served.predict(texts, attention=True)
    assert status == 200 and answer["model"] == {"name": "reread-snippets", "version": "1", "variant": "han"}
    monkeypatch.chdir(folder.directory)
    expected = load_model("snippets", version=1).predict(texts).to_dict("records")
    assert answer["predictions"] == json.loads(json.dumps(expected))
    without = served.predict(texts)[1]["predictions"]
    assert without == [{name: value for name, value in row.items() if name != "attention"} for row in expected]


def test_requests_at_once_get_their_own_answers(served):
    texts = [f"{TEXT} {SHORT if number % 3 else ''} Row {number}." for number in range(60)]
    alone = [served.predict([text])[1]["predictions"][0] for text in texts]
    with ThreadPoolExecutor(16) as pool:
        together = [answer[1]["predictions"][0] for answer in pool.map(lambda text: served.predict([text]), texts)]
    for answer, other in zip(alone, together, strict=True):
        assert answer["label"] == other["label"] and answer["words_read"] == other["words_read"]
        assert answer["probability"] == pytest.approx(other["probability"], abs=1e-6)


@pytest.mark.parametrize(
    ("body", "status", "fault"),
    [
        ({"rows": [TEXT, None]}, 400, "row 1 of the column 'text' is null"),
        ({"rows": [3]}, 400, "row 0 of the column 'text' is of type int"),
        ({"rows": ["\ud800"]}, 400, "row 0 has half of a surrogate pair"),
        ({"rows": []}, 400, "rows: List should have at least 1 item"),
        ({"rows": [SHORT] * 1025}, 400, "rows: List should have at most 1024 items"),
        ({"rows": TEXT}, 400, "rows: Input should be a valid list"),
        ({"texts": [TEXT]}, 400, "rows: Field required"),
        ({"rows": [TEXT], "attention": "perhaps"}, 400, "attention: Input should be a valid boolean"),
        ([TEXT], 400, "the request: "),
        ({"rows": ["x" * 17_000_000]}, 413, "16,000,000 are read"),
    ],
)
def test_a_request_that_cannot_be_read_is_refused_with_a_reason(served, body, status, fault):
    code, answer = post(f"{served.page}/predict", body, **served.known)
    assert code == status and fault in answer["detail"]
    assert "\n" not in answer["detail"] and len(answer["detail"]) < 300


def test_the_server_describes_itself(served):
    assert json.loads(served.get("/health")[2])["status"] == "ok"
    about = json.loads(served.get("/model")[2])
    assert about["classes"] == ["read", "draw"] and about["card"].startswith("# han on snippets")
    described = json.loads(served.get("/openapi.json")[2])
    assert set(described["paths"]) == {"/predict", "/model", "/health"}
    assert set(described["paths"]["/predict"]["post"]["responses"]) == {"200", "400", "411", "413", "503"}
    status, kind, page = served.get("/")
    assert status == 200 and kind.startswith("text/html")
    # Nothing is loaded from another host, and what a document contains is never HTML.
    assert not re.search(r"(src|href)=.https?:|innerHTML", page)


@pytest.mark.skipif(missing() is not None and not os.environ.get("CI"), reason=str(missing()))
def test_what_is_typed_into_the_page_is_answered_there(served):
    with browser() as driver:
        # As a person who is asked for the password.
        driver.get(served.page.replace("//", f"//reread:{served.password}@") + "/health")
        driver.get(served.page)
        waiting = WebDriverWait(driver, 30)
        waiting.until(lambda driver: "reread-snippets, version 1" in driver.find_element("id", "name").text)
        driver.find_element("id", "input").send_keys(f"<b>{TEXT}</b>")
        driver.find_element("tag name", "button").click()
        waiting.until(lambda driver: driver.find_elements("id", "result"))
        answer = served.predict([f"<b>{TEXT}</b>"], attention=True)[1]["predictions"][0]
        assert driver.find_element("id", "result").text == answer["label"]
        rows = [row.text.split() for row in driver.find_elements("css selector", "#answer tr")]
        expected = sorted(answer["probabilities"].items(), key=lambda item: -item[1])
        assert rows == [[name, f"{probability:.3f}"] for name, probability in expected]
        words = [word.text for word in driver.find_elements("css selector", ".word")]
        assert words == [word for sentence in answer["attention"] for word in sentence["words"]]
        # What a document contains stays text.
        assert not driver.find_elements("css selector", "#answer b")
        severe = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert [entry for entry in severe if "favicon" not in entry["message"]] == []


def test_who_has_no_password_or_comes_by_another_name_is_refused(served):
    body = {"rows": [TEXT]}
    assert post(f"{served.page}/predict", body)[0] == 401
    assert post(f"{served.page}/predict", body, Authorization="Bearer password")[0] == 401
    for wrong in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "http://127.0.0.1:1"}):
        assert post(f"{served.page}/predict", body, **served.known, **wrong)[0] == 403
    assert post(f"{served.page}/predict", body, **served.known, Origin=served.page)[0] == 200


def test_a_request_that_does_not_become_whole_is_closed(served):
    """On a connection with nothing, half a header, half a body, and half of a second request."""
    port = int(served.page.rpartition(":")[2])
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {served.password}\r\n"
    body = f"POST /predict HTTP/1.1\r\n{head}Content-Length: 20\r\n\r\n{{"
    starts = ["", "GET /hea", body, f"GET /health HTTP/1.1\r\n{head}\r\nGET /hea"]
    with contextlib.ExitStack() as stack:
        connections = []
        for start in starts * 5:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            connection.sendall(start.encode())
            connections.append(connection)
        # Others are answered meanwhile.
        assert served.predict([TEXT])[0] == 200
        for connection in connections:
            while connection.recv(4096):
                pass


@pytest.mark.parametrize("length", [2_000, 17_000_000])
def test_a_client_that_leaves_while_it_sends_is_no_error(folder, length):
    """``serving`` refuses a traceback in the log."""
    with serving(folder, "snippets", "--version", "1") as server:
        port = int(server.page.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"Host: 127.0.0.1\r\nAuthorization: {server.known['Authorization']}\r\n"
            sent = (
                f"POST /predict HTTP/1.1\r\n{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n["
            )
            connection.sendall(sent.encode())
            time.sleep(0.5)
        time.sleep(0.5)
        assert server.predict([TEXT])[0] == 200


def test_images_are_sent_as_pixels(folder):
    with serving(folder, "dots") as server:
        pixels = np.arange(2 * 8 * 8).reshape(2, 8, 8, 1).tolist()
        status, answer = server.predict(pixels)
        assert status == 200 and len(answer["predictions"]) == 2
        for rows, fault in (
            ([[[[256]] * 8] * 8], "uint8"),
            ([[[1, 2], [3]]], "not of one shape"),
            ([TEXT], "uint8 [N, 8, 8, 1]"),
            ([[[[0]] * 9] * 8], "[1, 8, 9, 1]"),
        ):
            status, answer = server.predict(rows)
            assert status == 400 and fault in answer["detail"], answer


def test_a_port_in_use_and_a_model_that_is_not_there_are_one_line(folder):
    def refused(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "reread", "serve", "model", *words],
            cwd=folder.directory, env=folder.environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""
        return done.stderr

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = refused("snippets", "--port", port)
        assert f"port {port}" in said and "--port" in said
    assert "did you mean 'snippets'?" in refused("snipets", "--port", port)


def test_a_copy_of_the_folder_answers_with_its_own_files(folder, tmp_path):
    shutil.copytree(folder.directory, tmp_path / "copy")
    for file in tmp_path.glob("copy/mlartifacts/**/*.safetensors"):
        file.write_bytes(b"of the copy")
    copy = replace(folder, directory=tmp_path / "copy")
    assert "does not load" in copy.predict("--data", "snippets", TEXT, code=2)
