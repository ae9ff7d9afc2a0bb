"""Commands as the arms of a claim: each arm and seed is a run of somebody's command, made once and judged together.

FOLDER/.reread/             beside the claim file, which may be in a repository of others; git ignores it
    runs/KEY/               one run: job.json, log.txt, out/ of the command, result.json, written last
    repositories/ID.git     a mirror of a repository that an address names
    NAME/scores.csv         the scores of NAME.yaml as `reread judge` reads them

A command is another's code, and runs with all rights of the user.
"""
