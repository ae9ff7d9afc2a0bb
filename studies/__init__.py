"""Questions that a post or a paper leaves open, each a command that writes its evidence: copying, gradients, quantiles,
gates, deletion. The other files are what they share.

``python -m studies.NAME`` writes results/studies/NAME/, of trained networks results/studies/NAME/DATA/: results.json
(what each judged sentence comes to, with n and intervals), the data of its figure as CSV, and the figure drawn from
that data. Nothing in it tells of time or place, so the same command on the same kind of machine writes the same bytes;
but for the times that studies.quantiles measures.
"""
