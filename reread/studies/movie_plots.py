"""Movie plots of our own writing for the post's example, a review of a plot that ends 'But the movie is really boring'.

Words are lower-case and split by hand as the tokeniser splits them, because a machine that runs studies may have none.
"""

PHRASE = ("but", "the", "movie", "is", "really", "boring")
END = "."

# Each plot by its sentences.
PLOTS = tuple(
    tuple(tuple(sentence.split()) for sentence in plot.split(" . "))
    for plot in (
        "a young doctor moves to a small village in the mountains . he falls in love with the daughter of the mayor . "
        "one night a stranger comes to the house and tells them that her brother is still alive",
        "two brothers inherit an old hotel from their father . they open it again and a family arrives in the winter . "
        "after a few days the children begin to hear voices in the empty rooms on the second floor",
        "a retired detective is asked to find a missing girl in the city . he follows her friends from bar to bar . "
        "in the end he learns that her mother paid a man to take her out of the country",
        "a group of students travel to an island for the summer . their boat sinks and they must live in the woods . "
        "when the food is gone the two leaders fight and the group divides into two camps",
        "in the last year of the war a soldier walks home through the snow . an old woman hides him in her barn . "
        "the officer who looks for him was his best friend in school and knows the farm well",
        "a woman who works in a bank finds a letter from her dead husband . it leads her to a house by the sea . "
        "there she meets another woman who has the same ring and the same name on the door",
        "a scientist builds a machine that can send a message to the past . he warns his wife about the accident . "
        "the next morning she is alive and nobody in the town remembers who he is",
        "a poor boy from the country comes to the capital to become a singer . he sleeps in a theater at night . "
        "the owner hears him sing on the empty stage and gives him a part in the new show",
    )
)


def in_one_sentence(plot: tuple[tuple[str, ...], ...]) -> tuple[list[str], int]:
    """The plot and the phrase as one sentence, its parts joined by commas, and where the phrase begins."""
    words = [word for sentence in plot for word in (*sentence, ",")]
    return [*words, *PHRASE, END], len(words)


def in_sentences(plot: tuple[tuple[str, ...], ...]) -> list[list[str]]:
    """The plot's sentences, and the phrase as the last."""
    return [[*sentence, END] for sentence in (*plot, PHRASE)]
