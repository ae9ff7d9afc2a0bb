"""Each format on a file as its tool writes it, and what it says of one that is none."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from reread.importers import REGISTRY, Source, find_format
from reread.importers.rows import Reader, digest_of, find_sources
from reread.storage.errors import InputError
from reread.verdicts.scores import collect

FILES = Path(__file__).parent / "files"


def scores(texts, metric=None, name=None, **columns):
    return collect(Reader(find_sources([str(text) for text in texts]), name, columns).rows(metric))


def format_of(text) -> str:
    return find_format(Source(str(text))).__name__.rpartition(".")[2]


@pytest.fixture
def write(tmp_path):
    def write(name: str, content) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


TABLE = [("arm", "seed", "score"), ("new", 0, 0.9), ("new", 1, 0.8), ("old", 0, 0.5), ("old", 1, 0.25)]


def table_file(tmp_path, suffix: str) -> Path:
    path = tmp_path / f"scores{suffix}"
    if suffix == ".parquet":
        import pyarrow
        from pyarrow import parquet

        names, *rows = TABLE
        parquet.write_table(pyarrow.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)
    elif suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(TABLE[0], row, strict=True))) for row in TABLE[1:]))
    else:
        path.write_text("\ufeff" + "\n".join(("\t" if suffix == ".tsv" else ",").join(map(str, row)) for row in TABLE))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_table_of_any_kind_gives_the_same_scores(tmp_path, suffix):
    path = table_file(tmp_path, suffix)
    assert format_of(path) == "table"
    assert scores([path]).arms == {"new": {0: 0.9, 1: 0.8}, "old": {0: 0.5, 1: 0.25}}


def test_a_column_may_have_another_name_and_a_metric_is_a_column(write):
    path = write("runs.csv", "model,run,accuracy,loss\na,0,0.9,0.1\na,1,0.8,0.2\n")
    assert scores([path], "loss", arm="model", seed="run").arms == {"a": {0: 0.1, 1: 0.2}}
    with pytest.raises(InputError, match=r"has no column 'score'.*--metric, of accuracy, loss$"):
        scores([path], arm="model", seed="run")
    with pytest.raises(InputError, match="did you mean 'accuracy'"):
        scores([path], "acuracy", arm="model", seed="run")


def test_the_metrics_of_a_message_are_the_columns_of_numbers(write):
    path = write("runs.csv", 'arm,seed,item,loss,accuracy,note\na,0,1,,TRUE,x\na,0,2,"0,5",false,y\n')
    with pytest.raises(InputError, match=r"--metric, of loss, accuracy$"):
        scores([path])
    with pytest.raises(InputError, match=r"--column score=COLUMN, of arm, seed, note"):
        scores([write("none.csv", "arm,seed,note\na,0,x\n")])


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ";"), (".csv", "\t"), (".tsv", "\t")])
def test_the_delimiter_is_that_of_the_header(write, suffix, delimiter):
    text = '\n"arm, side"|seed|top 1, top 5|loss\na|0|0.5|0.1\n'.replace("|", delimiter)
    path = write(f"scores{suffix}", text)
    assert scores([path], "top 1, top 5", arm="arm, side").arms == {"a": {0: 0.5}}
    path.write_text(text.replace("0.1", "0,1"))
    with pytest.raises(InputError, match="row 1: loss is '0,1': write decimal points"):
        scores([path], "loss", arm="arm, side")


def test_true_and_false_are_1_and_0_in_a_file_of_text(write):
    path = write("right.csv", "arm,seed,item,score\na,0,x,True\na,0,y,FALSE\na,1,x,true\na,1,y,1\n")
    assert scores([path]).arms == {"a": {0: 0.5, 1: 1.0}}


def test_a_json_array_of_objects_is_a_table(write):
    rows = [dict(zip(TABLE[0], row, strict=True)) for row in TABLE[1:]]
    path = write("scores.json", json.dumps(rows, indent=2))
    assert format_of(path) == "table"
    assert scores([path]).arms == {"new": {0: 0.9, 1: 0.8}, "old": {0: 0.5, 1: 0.25}}
    for name, content in (("columns.json", {"arm": {"0": "a"}}), ("numbers.json", [1]), ("broken.json", "[{")):
        with pytest.raises(InputError, match="is no JSON array of objects"):
            scores([write(name, content)], name="table")
    with pytest.raises(InputError, match="is empty"):
        scores([write("empty.json", [])])


def test_rows_of_several_metrics_are_told_apart(write):
    path = write("long.csv", "arm,seed,metric,score\na,0,acc,0.9\na,0,loss,0.1\na,1,acc,0.8\na,1,loss,0.2\n")
    assert scores([path], "acc").arms == {"a": {0: 0.9, 1: 0.8}}
    # What another metric lacks does not matter.
    unknown = write("unknown.csv", path.read_text().replace("0.1", "nan"))
    assert scores([unknown], "acc").arms == scores([path], "acc").arms
    with pytest.raises(InputError, match="no metric 'ac': did you mean 'acc'"):
        scores([path], "ac")
    with pytest.raises(InputError, match=r"scores of 2 metrics: choose one by --metric, of acc, loss"):
        scores([path])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("s.csv", "", "is empty"),
        ("s.csv", "arm,seed,score\n", "is empty"),
        ("s.csv", "arm,seed,score\na,0,nan\n", "row 1: score is 'nan'"),
        ("s.csv", "arm,seed,score\na,0,0.9\na,1,\n", "row 2: score is empty"),
        ("s.csv", "arm,seed,score\na,0,1e300\n", "row 1: score is '1e300'"),
        ("s.csv", "arm,seed,score\na,0,high\n", "row 1: score is 'high'"),
        ("s.csv", "arm,seed,score\na,,0.5\n", "row 1 has no seed"),
        ("s.csv", "arm,seed,item,group,score\na,0,x,g,1\na,0,y,,1\n", "row 2 has no group"),
        ("s.csv", "arm,seed,score\na,0\n", "line 2 has 2 cells, and the header has 3"),
        ("s.csv", "arm,arm,score\na,b,0\n", "two columns 'arm'"),
        ("s.csv", "seed,score\n0,0.9\n", "no column 'arm'"),
        ("s.csv", "arm,score\na,0.9\n", "no column 'seed'"),
        ("s.jsonl", '{"arm": "a"}\n[1]\n', "line 2 is no JSON object"),
        ("s.parquet", "arm", "is no Parquet file"),
        ("s.txt", "arm", "is not recognised: name it by --from"),
        ("samples.jsonl", '{"doc_id": 0, "arguments": [], "resps": []}', "no metric that is a number"),
        ("bench.json", '{"machine_info": {}, "benchmarks": [{}]}', "is no file of pytest-benchmark"),
        ("bench.json", '{"machine_info": {}, "benchmarks": []}', "is empty"),
        ("h.json", '{"results": [{"command": 1, "median": 1, "times": 3}]}', "is no file of hyperfine"),
        ("metrics.json", {"accuracy": "high", "done": True}, "has no number"),
        ("chart.csv", '"Step","a - loss","a - loss__MIN","a - loss__MAX"\n0,1,1,1\n', "export of a chart"),
    ],
)
def test_a_file_that_is_none_is_one_line(write, name, content, said):
    with pytest.raises(InputError, match=said) as raised:
        scores([write(name, content)])
    assert "\n" not in str(raised.value)


def test_an_arm_may_be_named_before_its_files(write):
    for arm, by_seed in (("a", (0.1, 0.2)), ("b", (0.3, 0.4))):
        for seed, score in enumerate(by_seed):
            folder = write(f"{arm}=x/{seed}.csv", f"score\n{score}\n").parent
    collected = scores([f"first={folder.parent}/a=x/*.csv", f"second={folder.parent}/b=x/*.csv"])
    assert collected.arms == {"first": {0: 0.1, 1: 0.2}, "second": {0: 0.3, 1: 0.4}}
    # A path that exists may have "=" and brackets in it.
    assert find_sources([str(write("run[0].csv", "score"))])[0].path.name == "run[0].csv"
    assert find_sources([str(folder / "0.csv")])[0].arm is None
    with pytest.raises(InputError, match="given twice"):
        find_sources([f"a={folder / '0.csv'}", f"b={folder / '0.csv'}"])
    with pytest.raises(InputError, match="does not exist"):
        find_sources(["a=nowhere/*.csv"])


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["a-0/m.json", "a-1/m.json", "a-4/m.json", "a-10/m.json"], [0, 1, 4, 10]),
        (["run10.json", "run9.json"], [10, 9]),
        # Below the first name that differs there may be dates.
        (["s-3/samples_x_T10-00-03.5.jsonl", "s-5/samples_x_T10-07-59.1.jsonl"], [3, 5]),
        (["a-0/m.json", "a-x/m.json"], [0, 1]),
        (["a-7/m.json", "b-9/m.json"], [0, 1]),
        (["lr-0.1.json", "lr-0.5.json"], [0, 1]),
        (["T10-03.json", "T11-05.json"], [0, 1]),
        (["fold-7/seed-3.json", "fold-7/seed-5.json", "fold-8/seed-3.json"], [0, 1, 2]),
        (["7.json", "07.json"], [0, 1]),
        (["a-7/m.json"], [0]),
    ],
)
def test_the_seed_of_a_file_is_the_number_in_which_the_paths_of_its_arm_differ(write, names, numbers):
    paths = [write(f"2/{name}", {"accuracy": 0.5}) for name in names]
    assert [source.number for source in find_sources([f"x={path}" for path in paths])] == numbers
    assert list(scores([f"x={path}" for path in paths], "accuracy", "metrics").arms["x"]) == sorted(numbers)


def test_an_address_is_refused_by_a_format_of_files():
    for name in ("table", "wandb", "lm_eval", "tensorboard"):
        with pytest.raises(InputError, match=f"sqlite:///a.db#x is no address that {name} reads"):
            scores(["sqlite:///a.db#x"], name=name)


TEXTS = """arm,seed,item,prediction,reference
a,0,x,a man walks,a man walks on the beach
a,0,y,,two dogs
a,1,x,a man walks on a beach,a man walks on the beach
a,1,y,two red dogs,two dogs
"""


def test_texts_are_measured_over_items(write):
    collected = scores([write("texts.csv", TEXTS)], "word_error_rate")
    assert collected.arms == {"a": {0: 5 / 8, 1: 2 / 8}} and collected.lower_is_better is True
    # The parts of each item are enough: the errors and the words of the reference.
    parts = "arm,seed,item,{0}.1,{0}.2\na,0,x,3,6\na,0,y,2,2\na,1,x,1,6\na,1,y,1,2\n".format("word_error_rate")
    assert scores([write("parts.csv", parts)], "word_error_rate").arms == collected.arms
    likelihoods = "arm,seed,item,perplexity.1,perplexity.2\na,0,x,0,1\na,0,y,6.931471805599453,9\n"
    assert scores([write("nats.csv", likelihoods)], "perplexity").arms["a"][0] == pytest.approx(2)
    renamed = write("renamed.csv", TEXTS.replace("prediction", "hypothesis"))
    assert scores([renamed], "word_error_rate", prediction="hypothesis").arms == collected.arms
    # A column of the metric's name is a score, whatever else stands there.
    scored = write("scored.csv", "arm,seed,item,prediction,reference,bleu\na,0,x,a,a,30\na,0,y,a,a,40\n")
    assert scores([scored], "bleu").arms == {"a": {0: 35.0}}


@pytest.mark.parametrize(
    ("content", "metric", "said"),
    [
        (TEXTS, None, "no column 'score'"),
        (TEXTS, "rouge", "no metric 'rouge'"),
        (TEXTS.replace(",item,", ",line,"), "bleu", "add the column 'item'"),
        (TEXTS.replace("reference", "truth"), "bleu", "no column 'reference'"),
        ("arm,seed,item,prediction,reference\na,0,x,a,\na,0,y,b,\n", "word_error_rate", "not defined on these items"),
        ("arm,seed,item,bleu.1\na,0,x,\na,0,y,1\n", "bleu", "row 1: bleu.1 is empty"),
    ],
)
def test_texts_that_cannot_be_measured_are_one_line(write, content, metric, said):
    with pytest.raises(InputError, match=said) as raised:
        scores([write("texts.csv", content)], metric)
    assert "\n" not in str(raised.value)


def test_scores_and_texts_do_not_mix(write):
    files = [write("texts.csv", TEXTS), write("scored.csv", "arm,seed,item,score\nb,0,x,1\nb,0,y,0\n")]
    with pytest.raises(InputError, match=r"scored.csv has a score per row"):
        scores(files, "bleu")


def test_metrics_of_a_script_are_a_file_per_seed(write):
    for seed, accuracy in enumerate((0.5, 0.75, float("nan"))):
        write(f"{seed}/metrics.json", {"accuracy": accuracy, "epochs": 3, "name": "a", "best": True})
    folder = write("other.txt", "").parent
    assert scores([f"a={folder}/[01]/metrics.json"], "accuracy").arms == {"a": {0: 0.5, 1: 0.75}}
    with pytest.raises(InputError, match="no metric 'name': choose from: accuracy, epochs"):
        scores([f"a={folder}/0/metrics.json"], "name")
    with pytest.raises(InputError, match=r"2/metrics.json, row 1: accuracy is 'nan'"):
        scores([f"a={folder}/2/metrics.json"], "accuracy")


def test_every_file_has_items_or_none_has(write):
    with_items = write("a.csv", "arm,seed,item,score\na,0,x,1\na,0,y,0\n")
    with pytest.raises(InputError, match=r"b.csv has no column 'item'"):
        scores([with_items, write("b.csv", "arm,seed,score\na,1,0.5\n")])


def test_the_runs_table_of_weights_and_biases():
    path = FILES / "wandb.csv"
    assert format_of(path) == "wandb"
    collected = scores([path], "test/accuracy", arm="activation")
    assert collected.arms["relu"] == {0: 0.9043, 1: 0.9051, 2: 0.9058, 3: 0.9049}
    with pytest.raises(InputError, match=r"no column 'arm': name it by --column arm=COLUMN, of Name, State"):
        scores([path], "test/accuracy")


def test_a_run_that_has_not_finished_is_no_result_and_one_without_an_arm_is_another(write):
    text = (FILES / "wandb.csv").read_text()
    path = write("w.csv", text.replace('"finished"', '"crashed"', 1))
    with pytest.raises(InputError, match="row 1: a run of arm 'swish' is crashed, not finished"):
        scores([path], "test/accuracy", arm="activation")
    path.write_text(text.replace('"finished"', '"crashed"', 1).replace('"swish"', '""', 1))
    assert list(scores([path], "test/accuracy", arm="activation").arms["swish"]) == [0, 1, 2]


def test_the_csv_of_mlflows_pages():
    path = FILES / "mlflow-ui.csv"
    assert format_of(path) == "mlflow"
    assert scores([path], "accuracy", arm="activation").arms["swish"] == {0: 0.9257, 1: 0.9244}


def test_an_experiment_of_mlflow_and_its_export_give_the_same_scores(tmp_path, monkeypatch):
    import mlflow

    address = f"sqlite:///{tmp_path}/mlflow.db"
    client = mlflow.MlflowClient(address)
    experiment = client.create_experiment("swish in DenseNet", artifact_location=str(tmp_path / "artifacts"))
    expected: dict[str, dict] = {"relu": {}, "swish": {}}
    for arm, by_seed in expected.items():
        for seed in range(2):
            run = client.create_run(experiment).info.run_id
            client.log_param(run, "activation", arm)
            client.log_param(run, "seed", seed)
            client.log_metric(run, "accuracy", 0.5, step=0)
            by_seed[seed] = 0.9 + seed / 100 + (arm == "swish") / 50
            client.log_metric(run, "accuracy", by_seed[seed], step=1)
            client.set_terminated(run)
    source = f"{address}#swish%20in%20DenseNet"
    assert format_of(source) == "mlflow" and digest_of(Source(source)) is None
    assert scores([source], "accuracy", arm="params.activation").arms == expected
    # As `mlflow runs` writes it.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    mlflow.search_runs([experiment]).to_csv(tmp_path / "runs.csv", index=False)
    assert format_of(tmp_path / "runs.csv") == "mlflow"
    assert scores([tmp_path / "runs.csv"], "accuracy", arm="params.activation").arms == expected
    with pytest.raises(InputError, match="no experiment 'swish'"):
        scores([f"{address}#swish"])
    with pytest.raises(InputError, match="does not exist"):
        scores([f"sqlite:///{tmp_path}/other.db#x"])
    assert not (tmp_path / "other.db").exists()


def test_a_folder_of_mlflow_is_read_by_its_address(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    folder = tmp_path / "my mlruns"
    client = mlflow.MlflowClient(folder.as_uri())
    experiment = client.create_experiment("swish")
    parent, child = (client.create_run(experiment).info.run_id for _ in range(2))
    for run in (parent, child):
        client.log_param(run, "activation", "relu")
        client.set_terminated(run)
    client.log_metric(child, "accuracy", 0.5)
    monkeypatch.chdir(tmp_path)
    assert format_of(folder) == "mlflow"
    with pytest.raises(InputError, match=f"names no experiment: write {folder.as_uri()}#NAME, .*Default, swish"):
        scores([folder], "accuracy", arm="params.activation")
    # A database has no row of a number.
    with pytest.raises(InputError, match=f"swish, run {parent}: metrics.accuracy is empty.*remove the run"):
        scores([f"{folder.as_uri()}#swish"], "accuracy", arm="params.activation")
    client.delete_run(parent)
    for address in (folder.as_uri(), "file:my%20mlruns"):
        assert scores([f"{address}#swish"], "accuracy", arm="params.activation").arms == {"relu": {child: 0.5}}
    for other in (tmp_path, folder / experiment, tmp_path / "new"):
        with pytest.raises(InputError, match="is no folder of MLflow"):
            scores([f"{other.as_uri()}#swish"])
    assert [path.name for path in tmp_path.iterdir()] == ["my mlruns"]
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "false")
    with pytest.raises(InputError, match=r"cannot be read \(.*\): convert it by mlflow migrate-filestore --source"):
        scores(["file:./my%20mlruns#swish"])  # MLflow keeps what it has opened by an address


def test_a_database_of_another_kind_is_one_line(write):
    with pytest.raises(InputError, match="cannot be read .*: start the server") as raised:
        scores([f"sqlite:///{write('text.db', 'no database')}#swish"])
    assert "\n" not in str(raised.value)


def sample(document: int, filters: str, **metrics) -> str:
    """A line of --log_samples, as lm_eval/evaluator.py and loggers/evaluation_tracker.py write it."""
    digest = "0" * 64
    return json.dumps(
        {"doc_id": document, "doc": {"question": "1 + 1"}, "target": "2",
         "arguments": {"gen_args_0": {"arg_0": "Q: 1 + 1", "arg_1": {"until": ["Q:"]}}}, "resps": [["2"]],
         "filtered_resps": ["2"], "filter": filters, "metrics": list(metrics), "doc_hash": digest,
         "prompt_hash": digest, "target_hash": digest, **metrics}
    )  # fmt: skip


def test_samples_of_lm_eval_are_scores_of_items(write):
    for arm, right in (("base", 1), ("tuned", 2)):
        for seed in range(2):
            lines = [sample(doc, "none", acc=float(doc < right + seed), word_perplexity=[-1.0, 3]) for doc in range(4)]
            write(f"{arm}/samples_arc_easy_2026-03-01T10-0{seed}-00.000000.jsonl", "\n".join(lines))
    folder = write("other/samples_gsm8k_2026-03-01T10-00-00.000000.jsonl", sample(0, "none", acc=1.0)).parents[1]
    assert format_of(next(folder.glob("base/*"))) == "lm_eval"
    collected = scores([f"base={folder}/base/*", f"tuned={folder}/tuned/*"])
    assert (collected.metric, collected.arms) == ("acc", {"base": {0: 0.25, 1: 0.5}, "tuned": {0: 0.5, 1: 0.75}})
    # As results_DATE.json names it.
    assert scores([f"base={folder}/base/*"], "acc,none").arms == {"base": {0: 0.25, 1: 0.5}}
    with pytest.raises(InputError, match="no metric 'acc,other'"):
        scores([f"base={folder}/base/*"], "acc,other")
    assert collected.items["tuned"][1].tolist() == [1, 1, 1, 0]
    with pytest.raises(InputError, match="is of task arc_easy, .* of gsm8k"):
        scores([f"base={folder}/base/*", f"tuned={folder}/other/*"])


def test_a_metric_of_several_filters_is_named_as_in_the_results_of_lm_eval(write):
    lines = [
        sample(doc, name, exact_match=float(doc < right))
        for name, right in (("strict-match", 1), ("flexible-extract", 2))
        for doc in range(2)
    ]
    path = write("samples_gsm8k_2026-03-01T10-00-00.000000.jsonl", "\n".join(lines))
    assert scores([f"a={path}"], "exact_match,strict-match").arms == {"a": {0: 0.5}}
    with pytest.raises(InputError, match="2 metrics"):
        scores([f"a={path}"])


def test_the_results_of_lm_eval_have_no_documents(write):
    means = {"arc_easy": {"alias": "arc_easy", "acc,none": 0.5, "acc_stderr,none": 0.01}}
    content = {"results": means, "n-shot": {"arc_easy": 0}, "config": {"model": "hf"}, "date": 1.0}
    path = write("results_2026-03-01T10-00-00.000000.json", json.dumps(content, indent=2))
    assert format_of(path) == "lm_eval"
    with pytest.raises(InputError, match=r"give the samples_\*.jsonl that --log_samples writes"):
        scores([f"a={path}"], "acc,none")


def benchmark_run(path: Path, factor: float = 1.0) -> Path:
    content = json.loads((FILES / "pytest-benchmark.json").read_text())
    for benchmark in content["benchmarks"]:
        benchmark["stats"]["median"] *= factor
    path.write_text(json.dumps(content))
    return path


def test_a_process_of_pytest_benchmark_is_one_unit(tmp_path):
    paths = [benchmark_run(tmp_path / f"{number}.json", 1 + number / 10) for number in range(3)]
    assert format_of(paths[0]) == "pytest_benchmark"
    collected = scores(paths)
    median = json.loads(paths[0].read_text())["benchmarks"][0]["stats"]["median"]
    assert list(collected.arms) == ["test_sorted", "test_reversed"] and collected.lower_is_better is True
    assert collected.arms["test_sorted"] == pytest.approx({0: median, 1: 1.1 * median, 2: 1.2 * median})
    # Two versions of a program: the benchmarks are the metrics.
    two = [f"old={paths[0]}", f"old={paths[1]}", f"new={paths[2]}"]
    assert scores(two, "test_sorted").arms == {
        "old": pytest.approx({0: median, 1: 1.1 * median}), "new": pytest.approx({0: 1.2 * median}),
    }  # fmt: skip
    with pytest.raises(InputError, match="2 metrics.*test_sorted, test_reversed"):
        scores(two)


def test_a_run_of_hyperfine_is_a_unit_and_of_several_files_each_is_a_block(tmp_path):
    path = FILES / "hyperfine.json"
    assert format_of(path) == "hyperfine"
    single = scores([path])
    assert single.arms["./old"] == {0: 0.203, 1: 0.205, 2: 0.208, 3: 0.205} and single.lower_is_better is True
    assert "drift" in single.cautions[0]
    blocks = [shutil.copy(path, tmp_path / f"block-{number}.json") for number in range(3)]
    collected = scores(blocks)
    assert collected.arms["./new --threads 2"] == {0: 0.151, 1: 0.151, 2: 0.151} and not collected.cautions
    failed = json.loads(path.read_text())
    failed["results"][0]["exit_codes"][2] = 1
    (tmp_path / "failed.json").write_text(json.dumps(failed))
    with pytest.raises(InputError, match=r"'./old' failed in 1 runs \(exit code 1\)"):
        scores([tmp_path / "failed.json"])


@pytest.mark.unlocked
def test_event_files_of_tensorboard(tmp_path):
    writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.scalar.summary import scalar_pb

    for seed in range(2):
        events = writer.EventFileWriter(str(tmp_path / f"run-{seed}"))
        for step in range(3):
            old_form = Summary(value=[Summary.Value(tag="accuracy", simple_value=0.5 + step / 8 + seed / 4)])
            events.add_event(Event(step=step, summary=old_form))
            new_form = Event(step=step)
            new_form.summary.CopyFrom(scalar_pb("loss", 1.0 - step / 4))
            events.add_event(new_form)
        events.close()
    text = f"a={tmp_path}/run-*"
    assert scores([text], "accuracy").arms == {"a": {0: 0.75, 1: 1.0}}
    assert scores([text], "loss").arms == {"a": {0: 0.5, 1: 0.5}}


def test_without_tensorboard_one_line_says_what_to_install(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    path = write("run/events.out.tfevents.1.host", "")
    assert format_of(path) == format_of(path.parent) == "tensorboard"
    with pytest.raises(InputError, match="pip install tensorboard"):
        scores([f"a={path.parent}"], "accuracy")


def test_each_format_is_named_and_described():
    assert {"table", "mlflow", "wandb", "lm_eval", "tensorboard", "pytest_benchmark", "hyperfine"} <= set(
        REGISTRY.available()
    )
    for name in REGISTRY.available():
        assert REGISTRY.module(name).__doc__.strip()
    with pytest.raises(InputError, match="unknown format 'mlfow': did you mean 'mlflow'"):
        find_format(Source(str(FILES / "wandb.csv")), "mlfow")
