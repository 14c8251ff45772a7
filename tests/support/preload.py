"""What children of the fork server need is imported here, once, before they are forked.

They run functions of test modules, which import pytest and fixtures.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest  # noqa: F401

import kvstore
import kvstore.cli.main
import kvstore.shared.bucket
import kvstore.store.store
import kvstore.testing  # noqa: F401
import tests.conftest
import tests.support.image_workers  # noqa: F401

assert all((np, pa, pc))
pa.array([0])  # which imports pandas, where it is there
