"""Revisions of git repositories: found by name, and written into a folder, which becomes no work tree of git.

The user's repository is only read. A repository that a URL names is mirrored once, and fetched from again for branches
and tags; a whole commit id that the mirror has needs no network. Submodules are left out.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from reread.storage.errors import InputError, nearest
from reread.storage.files import content_key, published_directory, write_text
from reread.storage.locks import file_lock

REPOSITORIES = "repositories"
# https://host/path, git@host:path
URL = re.compile(r"[a-z][a-z0-9+.-]*://|[\w.-]+@[\w.-]+:")
RESOLVE = ("rev-parse", "--verify", "--quiet", "--end-of-options")
COMMIT = re.compile("[0-9a-f]{40}([0-9a-f]{24})?")
# A hook of git sets them, and they would name another repository.
NOT_INHERITED = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


@dataclass(frozen=True)
class Revision:
    """A commit of a repository. repository: its URL or the name of its folder. tree: git's digest of the files. dirty:
    whether it is checked out and tracked files differ from it.
    """

    repository: str
    git_directory: Path
    commit: str
    tree: str
    dirty: bool = False

    def write(self, folder: Path) -> None:
        """Write the files of the commit into ``folder``, which is made."""
        folder = folder.resolve()
        folder.mkdir(parents=True)
        index = {"GIT_INDEX_FILE": str(folder.with_name(f".{folder.name}.index"))}
        place = [f"--git-dir={self.git_directory}", f"--work-tree={folder}"]
        try:
            git(*place, "read-tree", self.tree, folder=folder, environment=index)
            git(*place, "checkout-index", "--all", "--quiet", folder=folder, environment=index)
        finally:
            Path(index["GIT_INDEX_FILE"]).unlink(missing_ok=True)


class GitError(InputError):
    """A command of git that failed; the message is its last line."""


def find_revision(name: str, repository: str | None, place: Path, cache: Path) -> Revision:
    """Return the revision ``name`` of a repository: a URL, or a path from ``place``; None: the one of ``place``.

    InputError where there is no repository, or no such revision in it.
    """
    work_tree = None
    if repository is not None and URL.match(repository):
        title, git_directory = without_password(repository), mirror(repository, name, cache)
    else:
        work_tree = place / Path(repository or ".").expanduser()
        try:
            git_directory = Path(git("rev-parse", "--absolute-git-dir", folder=work_tree))
        except GitError:
            raise InputError(
                f"{work_tree} is in no git repository: name one by repository, or write no git and declare sources"
            ) from None
        title = title_of(work_tree)
    at = f"--git-dir={git_directory}"
    try:
        commit = git(at, *RESOLVE, f"{name}^{{commit}}", folder=git_directory)
    except GitError:
        known = git(at, "for-each-ref", "--format=%(refname:short)", folder=git_directory).split()
        raise InputError(f"{title} has no revision '{name}': {nearest(name, known)}") from None
    tree = git(at, "rev-parse", f"{commit}^{{tree}}", folder=git_directory)
    return Revision(title, git_directory, commit, tree, work_tree is not None and differs(work_tree, commit))


def mirror(url: str, revision: str, cache: Path) -> Path:
    """Return the mirror of a repository, made or, where ``revision`` may have moved, brought up to date."""
    ignore_in_git(cache)
    directory = cache.resolve() / REPOSITORIES / f"{content_key(url)}.git"
    at = f"--git-dir={directory}"
    with file_lock(directory.with_suffix(".lock")):
        try:
            if not directory.is_dir():
                with published_directory(directory) as working:
                    git("clone", "--mirror", "--quiet", "--", url, str(working), folder=working)
            elif not (COMMIT.fullmatch(revision) and has(directory, revision)):
                git(at, "fetch", "--prune", "--quiet", "origin", folder=directory)
        except GitError as error:
            raise InputError(
                f"{without_password(url)} cannot be fetched ({error}): check the URL and the network"
            ) from None
    return directory


def ignore_in_git(folder: Path) -> None:
    """Let git ignore the folder of the runs: the claim file may be in a repository of others."""
    if not (folder / ".gitignore").exists():
        write_text(folder / ".gitignore", "*\n")


def exclude_from_git(patterns: Sequence[str]) -> None:
    """Let git ignore what has these names in the current folder, by .git/info/exclude, which no commit has."""
    try:
        file = Path(git("rev-parse", "--git-path", "info/exclude", folder=Path()))
        place = git("rev-parse", "--show-prefix", folder=Path())
    except InputError:  # no repository, or no git
        return
    known = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
    lines = [re.sub(r"([\\*?[])", r"\\\1", f"/{place}") + pattern for pattern in patterns]
    file.parent.mkdir(exist_ok=True)
    with open(file, "a", encoding="utf-8") as excluded:
        excluded.write("\n" if known and not known.endswith("\n") else "")
        excluded.writelines(f"{line}\n" for line in lines if line not in known.splitlines())


def has(directory: Path, commit: str) -> bool:
    try:
        git(f"--git-dir={directory}", "cat-file", "-e", f"{commit}^{{commit}}", folder=directory)
    except GitError:
        return False
    return True


def differs(folder: Path, commit: str) -> bool:
    """Return whether ``commit`` is checked out in a work tree whose files differ from it."""
    try:
        if git("rev-parse", "--verify", "--quiet", "HEAD", folder=folder) != commit:
            return False
        return bool(git("status", "--porcelain", "--untracked-files=no", folder=folder))
    except GitError:  # a bare repository, or one without a commit
        return False


def title_of(folder: Path) -> str:
    """Return the URL that a repository was cloned from, else the name of its folder: no path of this machine."""
    try:
        origin = git("remote", "get-url", "origin", folder=folder)
        if URL.match(origin) and not origin.startswith("file:"):
            return without_password(origin)
        return Path(git("rev-parse", "--show-toplevel", folder=folder)).name
    except GitError:
        return folder.resolve().name


def without_password(url: str) -> str:
    """Return a URL without a user's name and password."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def git(*arguments: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """Return what git prints, run in ``folder``; GitError with its last line, InputError without git."""
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    variables = {**inherited, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C", **(environment or {})}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except (FileNotFoundError, NotADirectoryError) as error:
        if error.filename == "git":
            raise InputError("git is not installed: install it, or declare sources in place of git") from None
        raise GitError(f"{folder} is no folder") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise GitError(lines[-1].removeprefix("fatal: ") if lines else f"git ended with exit code {done.returncode}")
    return done.stdout.strip()
