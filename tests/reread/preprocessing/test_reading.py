"""Raw documents as a network reads them: the arrays of prepared data, and what of each document got in."""

import numpy as np

from reread.preprocessing.reading import TextReader
from reread.preprocessing.text import number, segment
from reread.storage.files import write_json

INDEX = {"<pad>": 0, "<unk>": 1, "read": 2, "a": 3, "file": 4, ".": 5}
DESCRIPTION = {"lengths": {"sentences": {"kept": 2}, "words": {"kept": 4}}}
KEPT = (2, 4)


def test_documents_are_read_as_preparing_reads_them(tmp_path):
    write_json(tmp_path / "vocabulary.json", list(INDEX))
    texts = ["Read a file. Close it.", "", "Read a very long file.", "Read.\n\nA.\n\nFile.", "你好 \ud800"]
    reading = TextReader(tmp_path, DESCRIPTION).read(texts)
    tokens, counts = zip(*(number(segment(text), INDEX, *KEPT) for text in texts), strict=True)
    np.testing.assert_array_equal(reading.arrays["tokens"], np.concatenate(tokens))
    np.testing.assert_array_equal(reading.arrays["word_counts"], np.stack(counts))
    assert reading.arrays["sentence_counts"].tolist() == [2, 1, 1, 2, 1]
    assert reading.words[0] == [["read", "a", "file", "."], ["close", "it", "."]]
    assert reading.words[1] == []
    # A document without words is one unknown word to the network, and none to its reader.
    assert reading.columns["words_read"].tolist() == [7, 0, 4, 4, 3]
    assert reading.columns["words_unknown"].tolist() == [2, 0, 2, 0, 3]
    assert reading.columns["cut"].tolist() == [False, False, True, True, False]
