import random
from collections import Counter

from reread.preprocessing.vocabulary import build_vocabulary, count_words, word_index


def test_rare_words_are_left_out_and_the_rest_stand_by_count_then_word():
    counts = count_words([["b", "a", "c"], ["b", "a", "c", "c", "d"]])
    assert counts == {"a": 2, "b": 2, "c": 3, "d": 1}
    assert build_vocabulary(counts, min_count=2) == ["<pad>", "<unk>", "c", "a", "b"]
    assert build_vocabulary(counts, min_count=3) == ["<pad>", "<unk>", "c"]
    assert build_vocabulary(counts, min_count=9) == ["<pad>", "<unk>"]


def test_the_index_numbers_the_vocabulary_from_padding_and_unknown_on():
    assert word_index(["<pad>", "<unk>", "c", "a"]) == {"<pad>": 0, "<unk>": 1, "c": 2, "a": 3}


def test_counts_of_shards_in_any_order_add_up_to_those_of_the_whole():
    generator = random.Random(1)
    sentences = [generator.choices("abcdefghij", weights=range(1, 11), k=generator.randint(0, 30)) for _ in range(200)]
    whole = count_words(sentences)
    shards = [count_words(sentences[start::7]) for start in range(7)]
    generator.shuffle(shards)
    merged = sum(shards, Counter())
    assert merged == whole
    assert build_vocabulary(merged, 50) == build_vocabulary(whole, 50)
