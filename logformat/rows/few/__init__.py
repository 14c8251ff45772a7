"""Codecs of single rows and of a few, without numpy or Arrow: there one call would cost more than a row."""
