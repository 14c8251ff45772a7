"""``python -m kvstore``."""

from kvstore.cli.main import main

main()
