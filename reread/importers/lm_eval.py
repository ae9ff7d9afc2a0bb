"""lm-evaluation-harness: samples_TASK_DATE.jsonl, which `lm_eval --log_samples` writes, one file per run.

A document is an item. The arm is named before the file, as ARM=FILE, because the samples do not name the model; the
seed of a file is its number. A metric of a task with several filters is named as in the harness's results:
``exact_match,strict-match``; of a task with one filter, ``acc`` or ``acc,none``.
"""

import re
from typing import Any

from reread.importers import Source, Table, table
from reread.storage.errors import InputError

# What a sample has beside its metrics; older versions do not list these.
FIELDS = {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash",
          "prompt_hash", "target_hash"}  # fmt: skip
# The standard errors of results_DATE.json, which has no samples.
OF_RESULTS = b"_stderr,"
FILE = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[\d.-]+\.jsonl")


def recognises(source: Source) -> bool:
    has_samples = any(key in source.head for key in (b'"arguments"', b'"resps"', b'"doc_hash"'))
    return (has_samples and b'"doc_id"' in source.head) or is_results(source)


def is_results(source: Source) -> bool:
    return source.head.lstrip().startswith(b"{") and b'"results"' in source.head and OF_RESULTS in source.head


def read(source: Source) -> Table:
    """Return one row per document and metric; metrics that are no number are left out."""
    if is_results(source):
        raise InputError(
            f"{source.text} has only means over documents: give the samples_*.jsonl that --log_samples writes"
        )
    samples = table.objects(source)
    filters = {sample.get("filter", "none") for sample in samples}
    rows: list[tuple[Any, str, float]] = []
    for sample in samples:
        if "doc_id" not in sample:
            raise InputError(f"{source.text} has a sample without doc_id: give a file of --log_samples")
        metrics = sample.get("metrics") or [name for name in sample if name not in FIELDS]
        for name in metrics:
            if isinstance(sample.get(name), int | float):
                title = f"{name},{sample['filter']}" if len(filters) > 1 else name
                rows.append((sample["doc_id"], title, sample[name]))
    if not rows:
        raise InputError(f"{source.text} has no metric that is a number for each document")
    items, names, scores = map(list, zip(*rows, strict=True))
    task = FILE.fullmatch(source.path.name)
    about = {"task": task[1]} if task else {}
    # With one filter the harness's results name a metric by it, and its samples do not.
    aliases = {f"{name},{only}": name for name in names for only in filters if len(filters) == 1}
    columns = {"item": items, "metric": names, "score": scores}
    return Table(columns, numbered=True, aliases=aliases, about=about)
