"""A second crash recorder, which shares no code with :mod:`tests.crash` and works in another way.

* ``supervisor``: the kernel hands it every call that changes files, of all threads and processes of a workload
  (seccomp, user notification). It does the call itself and notes it; so calls have one order.
* ``pagecache``: files as a page cache and a disk hold them, and what a kill or a power cut may leave.
* ``workload``: two processes and three lanes of work on one store, each with a simple model.
* ``oracle``: opens what was left and holds it against what was acknowledged.
"""
