"""The command ``kvstore``: one file per command."""
