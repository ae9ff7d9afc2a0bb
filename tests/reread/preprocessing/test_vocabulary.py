from collections import Counter

from reread.preprocessing.vocabulary import WordCounts, build_vocabulary, word_index


def test_rare_words_are_left_out_and_the_rest_stand_by_count_then_word(tmp_path):
    counts = WordCounts(tmp_path)
    for words in ("bac", "baccd"):
        counts.add(*zip(*Counter(words).items(), strict=True))
    assert counts.at_least(1) == {"a": 2, "b": 2, "c": 3, "d": 1}
    assert build_vocabulary(counts.at_least(2)) == ["<pad>", "<unk>", "c", "a", "b"]
    assert build_vocabulary(counts.at_least(3)) == ["<pad>", "<unk>", "c"]
    assert build_vocabulary(counts.at_least(9)) == ["<pad>", "<unk>"]


def test_the_index_numbers_the_vocabulary_from_padding_and_unknown_on():
    assert word_index(["<pad>", "<unk>", "c", "a"]) == {"<pad>": 0, "<unk>": 1, "c": 2, "a": 3}
