"""What children of the fork server need is imported here, once, before they are forked."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import kvstore
import kvstore.shared.bucket
import kvstore.store.store
import kvstore.testing  # noqa: F401

assert all((np, pa, pc))
pa.array([0])  # which imports pandas, where it is there
