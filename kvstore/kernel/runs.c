/* Runs: sorted keys, each once, and a row of each (kvstore/memtable/run.py). Brings two together, and finds keys.
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

/* Keys: where each begins, and where the last one ends. */
typedef struct {
    const u8 *flat;
    const i64 *ends;
} keys_t;

static inline int order_at(const keys_t *one, u64 nth, const keys_t *other, u64 at) {
    i64 first = one->ends[nth], second = other->ends[at];
    return compare_bytes(one->flat + first, (u32)(one->ends[nth + 1] - first), other->flat + second,
                         (u32)(other->ends[at + 1] - second));
}

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
    keys_t old_keys = {older->keys, older->key_ends}, new_keys = {newer->keys, newer->key_ends};
    u64 count = 0, old = 0, new = 0;
    target->key_ends[0] = target->row_ends[0] = 0;
    while (old < older->count && new < newer->count) {
        int order = order_at(&old_keys, old, &new_keys, new);
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

/* The place of each asked key among the keys of a run, -1 if it is not there.
 *
 * asked    in any order; in key order it takes less time, since the search goes on from the last place
 */
EXPORT void kv_places(const u8 *flat, const i64 *ends, u64 count, const u8 *asked_flat, const i64 *asked_ends,
                      u64 asked_count, i64 *places) {
    keys_t keys = {flat, ends}, asked = {asked_flat, asked_ends};
    u64 low = 0;
    for (u64 nth = 0; nth < asked_count; nth++) {
        if (low && order_at(&keys, low - 1, &asked, nth) >= 0)
            low = 0;
        u64 high = low, step = 1;
        while (high < count && order_at(&keys, high, &asked, nth) < 0) {
            low = high + 1;
            high += step;
            step *= 2;
        }
        high = high < count ? high : count;
        while (low < high) {
            u64 middle = low + (high - low) / 2;
            if (order_at(&keys, middle, &asked, nth) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        places[nth] = low < count && !order_at(&keys, low, &asked, nth) ? (i64)low : -1;
    }
}
