"""The same as ``reread``: python -m reread."""

from reread.commands.app import main

main()
