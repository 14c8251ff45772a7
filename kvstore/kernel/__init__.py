"""The native kernel: parts of kvstore in C, for machines that have a compiler (docs/decisions/0030-native-kernel.md).

* It is optional. Python gives the same answers without it, and is what it is tested against.
* It knows bytes: pages of LMDB, keys, rows. No table, no catalog, no lock.
* Its functions do not call Python, and run while other threads do.
"""
