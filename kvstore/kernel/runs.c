/* Brings two runs together: sorted keys, each once, and a row of each (kvstore/memtable/run.py).
 *
 * - Where both have a key, the row of the newer run stays.
 * - Results have room for all of both; nothing else is written.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "common.h"

/* kvstore/kernel/runs.py has the same. Where each key and row begins, and where the last one ends. */
typedef struct {
    const u8 *keys, *rows;
    const i64 *key_ends, *row_ends;
    u64 count;
} run_t;

typedef struct {
    u8 *keys, *rows;
    i64 *key_ends, *row_ends;
} target_t;

static inline i64 copied(u8 *to, i64 end, const u8 *from, const i64 *ends, u64 nth) {
    u64 bytes = (u64)(ends[nth + 1] - ends[nth]);
    memcpy(to + end, from + ends[nth], bytes);
    return end + (i64)bytes;
}

static inline void take(const run_t *run, u64 nth, const target_t *target, u64 at) {
    target->key_ends[at + 1] = copied(target->keys, target->key_ends[at], run->keys, run->key_ends, nth);
    target->row_ends[at + 1] = copied(target->rows, target->row_ends[at], run->rows, run->row_ends, nth);
}

/* Returns the number of different keys. */
EXPORT u64 kv_merge(const run_t *older, const run_t *newer, const target_t *target) {
    u64 count = 0, old = 0, new = 0;
    target->key_ends[0] = target->row_ends[0] = 0;
    while (old < older->count && new < newer->count) {
        i64 old_at = older->key_ends[old], new_at = newer->key_ends[new];
        int order = compare_bytes(older->keys + old_at, (u32)(older->key_ends[old + 1] - old_at), newer->keys + new_at,
                                  (u32)(newer->key_ends[new + 1] - new_at));
        /* No branch: the processor can't foresee which is next. */
        take(order < 0 ? older : newer, order < 0 ? old : new, target, count++);
        old += order <= 0;
        new += order >= 0;
    }
    while (old < older->count)
        take(older, old++, target, count++);
    while (new < newer->count)
        take(newer, new++, target, count++);
    return count;
}
