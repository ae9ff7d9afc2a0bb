"""Questions that a post or a paper leaves open, one a file, each a command that writes its evidence.

``python -m studies.NAME`` writes results/studies/NAME/: results.json (what each judged sentence comes to, with n and
intervals), the data of its figure as CSV, and the figure drawn from that data. Nothing in it tells of time or place, so
the same command on the same kind of machine writes the same bytes; but for the times that studies.quantiles measures.
"""
