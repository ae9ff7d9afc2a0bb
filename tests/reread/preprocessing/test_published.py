"""The published data sets: small archives that the tests pack, and the real ones where REREAD_MIRROR names a folder."""

import gzip
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from reread.preprocessing.ingest import ingest
from reread.preprocessing.manifest import open_data_set
from reread.preprocessing.raw import add_data_set
from reread.preprocessing.sources import cifar10, cifar100, imdb, mnist, movie_reviews, newsgroups20
from reread.storage.errors import InputError
from tests.reread.preprocessing.packing import idx, pack


@pytest.fixture
def mirror():
    folder = os.environ.get("REREAD_MIRROR")
    if not folder:
        pytest.skip("REREAD_MIRROR names no folder with the published archives")
    return Path(folder)


def reviews() -> dict[str, bytes]:
    """40 reviews, 20 a split, half of each positive."""
    texts = {
        f"aclImdb/{split}/{label}/{number}_{rating}.txt": f"Film {number} was {label} to {split}.<br /><br />End."
        for split in ("train", "test")
        for label, rating in (("neg", 2), ("pos", 9))
        for number in (*range(5), *range(5000, 5005))
    }
    return {name: text.encode() for name, text in texts.items()}


def test_imdb_does_not_depend_on_how_it_is_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(imdb, "REVIEWS", 40)
    plain = pack(tmp_path / "plain.tar.gz", *reviews().items())
    others = {
        "aclImdb/README": b"Read me.",
        "aclImdb/train/unsup/0_0.txt": b"No label.",
        "aclImdb/train/labeledBow.feat": b"9 0:9",
        "aclImdb/train/pos/urls.txt": b"http",
    }
    full = pack(tmp_path / "full.tar.gz", *(others | dict(reversed(reviews().items()))).items())
    data, manifest = tmp_path / "data", tmp_path / "data.manifest.json"
    entry = add_data_set("one", imdb.rows([plain]), data, manifest)
    assert add_data_set("other", imdb.rows([full]), data, manifest) == entry
    documents = list(open_data_set("one", data, manifest).documents())
    review = next(document for document in documents if document.id == "test/pos/3_9.txt")
    assert review.labels == (1,) and review.split == "test" and review.text == "Film 3 was pos to test.\nEnd."
    assert entry.splits == {"train": 10, "validation": 10, "test": 20}
    # Films are held out, not reviews: those of the first numbers.
    assert {document.id for document in documents if document.split == "validation"} == {
        f"train/{label}/{number}_{rating}.txt" for label, rating in (("neg", 2), ("pos", 9)) for number in range(5)
    }


def test_imdb_refuses_what_is_not_the_published_content(tmp_path, monkeypatch):
    path = tmp_path / "imdb" / "aclImdb_v1.tar.gz"
    path.parent.mkdir()
    data, manifest = tmp_path / "data", tmp_path / "data.manifest.json"
    pack(path, *reviews().items())
    with pytest.raises(InputError, match="has 40 labelled reviews, the published archive has 50000"):
        ingest("imdb", data, manifest, mirror=tmp_path)
    monkeypatch.setattr(imdb, "REVIEWS", 40)
    with pytest.raises(InputError, match="has other content than the published one"):
        ingest("imdb", data, manifest, mirror=tmp_path)
    pack(path, *{**reviews(), "aclImdb/test/pos/0_9.txt": b"caf\xe9"}.items())
    with pytest.raises(InputError, match="'aclImdb/test/pos/0_9.txt' has invalid UTF-8 at byte 3"):
        ingest("imdb", data, manifest, mirror=tmp_path)
    pack(path, *{**reviews(), "../../x": b"out"}.items())
    with pytest.raises(InputError, match="'../../x' leads outside"):
        ingest("imdb", data, manifest, mirror=tmp_path)
    assert list(data.iterdir()) == [] and not manifest.exists()


def test_newsgroups_are_stripped_and_what_is_left_without_a_word_is_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(newsgroups20, "MESSAGES", 4)
    message = b"From: a@b\nSubject: x\n\nA B writes:\n> quoted\nMy own caf\xe9.\n\n--\nA signature\n"
    path = pack(
        tmp_path / "x.tar.gz",
        *{
            "20news-bydate-train/sci.med/1": message,
            "20news-bydate-train/sci.med/2": b"From: a\n\n> quoted\n",
            "20news-bydate-train/sci.med/4": b"From: a\n\n> quoted\n  ^^^^^^\n",
            "20news-bydate-test/sci.space/3": message.replace(b"\n", b"\r\n"),
            "20news-bydate-test/README": b"",
        }.items(),
    )
    rows = newsgroups20.rows([path])
    assert [(document.id, document.text) for document in rows.documents] == [
        ("train/sci.med/1", "My own café.\n"),
        ("test/sci.space/3", "My own café.\n"),
    ]
    assert sum(rows.about.dropped.values()) == 2


@pytest.mark.parametrize(
    "text",
    [
        "head\n\nbody\n\nmore",
        "head\n\n\nbody",
        "head\n\nbody",
        "no body",
        "",
        "head\n\n--\nonly a signature",
        "head\n\na\n---\nb\n\n",
        "head\n\n| a\nx said:\nkept\nIn article 5\n\nend\n \n",
    ],
)
def test_messages_are_stripped_as_scikit_learn_does(text):
    from sklearn.datasets import _twenty_newsgroups as reference

    body = reference.strip_newsgroup_footer(reference.strip_newsgroup_header(text))
    assert newsgroups20.strip_message(text) == reference.strip_newsgroup_quoting(body)


def test_mnist_puts_the_four_files_together(tmp_path, monkeypatch):
    monkeypatch.setattr(mnist, "SHAPES", ((30, 28, 28), (30,), (5, 28, 28), (5,)))
    generator = np.random.default_rng(0)
    train, test = (generator.integers(0, 256, (rows, 28, 28), dtype=np.uint8) for rows in (30, 5))
    parts = (train, np.arange(30, dtype=np.uint8) % 10, test, np.arange(5, dtype=np.uint8))
    paths = [tmp_path / f"{number}.gz" for number in range(4)]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(gzip.compress(idx(part)))
    rows = mnist.rows(paths)
    assert rows.images.shape == (35, 28, 28, 1) and np.array_equal(rows.images[30:, ..., 0], test)
    assert rows.labels.tolist() == [*range(10)] * 3 + [*range(5)]
    assert set(rows.split[:30]) == {0, 1} and set(rows.split[30:]) == {2}
    with pytest.raises(InputError, match="the published archive has"):
        mnist.rows([paths[1], paths[1], paths[2], paths[3]])


def test_cifar10_reads_planes_as_channels(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "RECORDS", 4)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(24, dtype=np.uint8) % 10
    records = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(24, -1)], axis=1)
    members = {name: records[4 * n : 4 * n + 4].tobytes() for n, name in enumerate(cifar10.BATCHES)}
    others = {"cifar-10-batches-bin/readme.html": b"", "cifar-10-batches-bin/batches.meta.txt": b"airplane\n"}
    rows = cifar10.rows([pack(tmp_path / "x.tar.gz", *(others | dict(reversed(members.items()))).items())])
    assert np.array_equal(rows.images, images) and rows.labels.tolist() == labels.tolist()
    assert set(rows.split[:20]) <= {0, 1} and set(rows.split[20:]) == {2}
    del members[cifar10.BATCHES[2]]
    with pytest.raises(InputError, match="has 5 batches, the published archive has 6"):
        cifar10.rows([pack(tmp_path / "y.tar.gz", *members.items())])
    members[cifar10.BATCHES[2]] = b"x"
    with pytest.raises(InputError, match="has 1 bytes in cifar-10-batches-bin/data_batch_3.bin"):
        cifar10.rows([pack(tmp_path / "z.tar.gz", *members.items())])


def test_cifar100_has_the_fine_labels_and_their_names(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar100, "RECORDS", {cifar100.TRAIN: 300, cifar100.TEST: 100})
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (400, 32, 32, 3), dtype=np.uint8)
    fine = np.arange(400, dtype=np.uint8) % 100
    records = np.concatenate([(fine % 20)[:, None], fine[:, None], images.transpose(0, 3, 1, 2).reshape(400, -1)], 1)
    names = [f"class_{number}" for number in range(100)]
    members = {
        cifar100.TEST: records[300:].tobytes(),
        cifar100.TRAIN: records[:300].tobytes(),
        cifar100.NAMES: "\n".join(names).encode() + b"\n",
        "cifar-100-binary/coarse_label_names.txt": b"fish\n",
    }
    data, manifest = tmp_path / "data", tmp_path / "data.manifest.json"
    rows = cifar100.rows([pack(tmp_path / "x.tar.gz", *members.items())])
    assert np.array_equal(rows.images, images) and rows.labels.tolist() == fine.tolist()
    assert set(rows.split[:300]) == {0, 1} and set(rows.split[300:]) == {2}
    entry = add_data_set("cifar100", rows, data, manifest)
    assert entry.classes == tuple(names) and entry.splits["test"] == 100
    opened = open_data_set("cifar100", data, manifest)
    assert Counter(opened.labels[opened.split == 2].tolist()) == dict.fromkeys(range(100), 1)
    for number, (name, content, fault) in enumerate(
        [
            (cifar100.TRAIN, b"x", "1 bytes in .*train.bin"),
            (cifar100.NAMES, b"apple\n", "1 names in .*fine_label_names"),
        ]
    ):
        with pytest.raises(InputError, match=fault):
            cifar100.rows([pack(tmp_path / f"{number}.tar.gz", *(members | {name: content}).items())])
    del members[cifar100.TEST]
    with pytest.raises(InputError, match="no member 'cifar-100-binary/test.bin'"):
        cifar100.rows([pack(tmp_path / "z.tar.gz", *members.items())])


def test_movie_reviews_are_split_by_the_authors_folds(tmp_path, monkeypatch):
    monkeypatch.setattr(movie_reviews, "REVIEWS", 20)
    names = [f"txt_sentoken/{label}/cv{fold}00_{fold}.txt" for label in ("neg", "pos") for fold in range(10)]
    members = dict.fromkeys(names, b'one sentence . \n\n and " two " . \n')
    path = pack(tmp_path / "x.tar.gz", *{"poldata.README.2.0": b"", **members}.items())
    documents = movie_reviews.rows([path]).documents
    assert {document.text for document in documents} == {'one sentence .\n\nand " two " .'}
    assert documents[19].id == "pos/cv900_9.txt" and documents[19].labels == (1,)
    assert [document.split for document in documents] == 2 * [*["train"] * 8, "validation", "test"]
    with pytest.raises(InputError, match="is not ASCII at byte 0"):
        movie_reviews.rows([pack(tmp_path / "y.tar.gz", *{**members, names[3]: b"\xe9"}.items())])
    del members[names[3]]
    with pytest.raises(InputError, match="has 19 reviews, the published archive has 20"):
        movie_reviews.rows([pack(tmp_path / "z.tar.gz", *members.items())])


@pytest.mark.mirror
@pytest.mark.parametrize(
    ("name", "published", "leaks"),
    [("imdb", (25_000, 25_000), 123), ("newsgroups20", (11_314, 7_532), 8), ("movie_reviews", (1_800, 200), 0),
     ("mnist", (60_000, 10_000), 0), ("cifar10", (50_000, 10_000), 0)],
)  # fmt: skip
def test_the_published_archives_have_the_recorded_content(tmp_path, mirror, name, published, leaks):
    """Of IMDB, 123 texts in both splits is the figure that others found, too."""
    data, manifest = tmp_path / "data", tmp_path / "data.manifest.json"
    entry = ingest(name, data, manifest, mirror=mirror)
    train = entry.splits["train"] + entry.splits["validation"]
    assert train + entry.splits["test"] + sum(entry.dropped.values()) == sum(published)
    assert entry.splits["test"] <= published[1] and 0.09 < entry.splits["validation"] / train < 0.112
    exact = entry.leaks["exact"]
    assert exact["train-test"] + exact["validation-test"] == leaks and exact["train-validation"] == 0
    opened = open_data_set(name, data, manifest)
    if entry.kind == "image":
        rows = Counter(opened.labels[opened.split == 2].tolist())
        assert len(opened.images) == sum(published)
        assert sum(rows.values()) == published[1] and (name == "mnist" or set(rows.values()) == {1000})
    else:
        texts = [document.text for document in opened.documents()]
        assert len(texts) == entry.rows and all(map(str.strip, texts))
        assert not any("<br />" in text for text in texts)


@pytest.mark.mirror
def test_no_film_of_imdb_is_cut_by_where_validation_begins_and_ends(mirror):
    """Two reviews of one film share rare names: none do from one side of a cut to the other."""
    reviews = {"pos": {}, "neg": {}}
    for document in imdb.rows([mirror / "imdb" / imdb.ARCHIVES[0].file_name]).documents:
        split, label, name = document.id.split("/")
        if split == "train":
            reviews[label][int(name.split("_")[0])] = document.text
    names = {
        (label, number): set(re.findall(r"(?<![.!?] )\b[A-Z][a-z]{3,}\b", text))
        for label, texts in reviews.items()
        for number, text in texts.items()
    }
    counts = Counter(name for words in names.values() for name in words)
    rare = {key: {name for name in words if 2 <= counts[name] <= 40} for key, words in names.items()}

    def across(label: str, cut: int) -> list[tuple[int, int]]:
        pairs = [(before, after) for before in range(cut - 12, cut) for after in range(cut, cut + 12)]
        return [(review, other) for review, other in pairs if len(rare[label, review] & rare[label, other]) >= 2]

    cuts = [
        (label, edge) for label, parts in imdb.VALIDATION.items() for part in parts for edge in (part.start, part.stop)
    ]
    for label, cut in cuts:
        assert cut in (0, 12_500) or not across(label, cut), (label, cut)
    assert across("neg", 345), "reviews 341 to 346 are of one film"
