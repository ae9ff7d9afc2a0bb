"""The studies: questions that a post or a paper leaves open, each one file, run by ``reread study NAME``.

A study, reread/studies/NAME.py, defines

    Settings    frozen dataclass (reread.storage.settings) of what ``--option NAME=VALUE`` may set
    DEBUG       Settings of a size for tests
    EXPERIMENT  the experiment whose runs it reads where the command names no other; None: it reads no run
    VARIANT     the variant whose networks it reads; None: it reads an evaluated experiment as a whole
    study       study(settings, input, device) -> study_io.Findings. The input is load_runs.TrainedNetworks of a
                variant, load_runs.EvaluatedExperiment, or None
    draw_figure draw_figure(folder, path): draws the figure from the tables in ``folder`` alone

and, where its evidence is of a whole experiment and not of one data set,

    PER_EXPERIMENT  True: the evidence is in results/studies/NAME/EXPERIMENT in place of NAME/DATA

A study trains nothing. The other files are what several studies share.
"""

from reread.storage.registry import Registry

REGISTRY = Registry(
    "reread.studies", "study", requires=("Settings", "DEBUG", "EXPERIMENT", "VARIANT", "study", "draw_figure")
)
