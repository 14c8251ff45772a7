/* Encodes values: encode.c says how. */

#ifndef KVSTORE_KERNEL_ENCODE_H
#define KVSTORE_KERNEL_ENCODE_H

#include "arrow.h"
#include "sums.h"

enum { DONE, ASK_PYTHON }; /* kvstore/kernel/writes.py has the same */

int kv_encode(const table_t *table, const arrow_array_t *rows, const i64 *places, u64 count, const u8 *keys,
              const i64 *key_ends, u8 *values, u64 capacity, i64 *ends, u64 *sums, u64 *hashes, i64 *cursors);

#endif
