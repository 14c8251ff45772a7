/* Brings sorted runs together, and finds keys in one: kvstore/memtable/run.py.
 *
 * - The keys of a run are sorted, each is there once; there is at least one. No key begins with another.
 * - Of a key that several runs have, the row of the last one of them counts.
 * - The next key of each run is in a heap; the number beside it decides most comparisons.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "common.h"

typedef struct {
    const u8 *keys;
    const i64 *key_ends; /* where each begins, and where the last one ends */
    const u8 *rows;
    const i64 *row_ends;
    u64 count, place; /* of the key that comes next */
} run_t;

/* The next key of a run. */
typedef struct {
    u64 number; /* its bytes after those that all keys have in common */
    const u8 *key;
    u64 bytes, run;
} head_t;

static u64 common_of(const u8 *one, u64 bytes, const u8 *other, u64 others) {
    u64 at = 0;
    while (at < bytes && at < others && one[at] == other[at])
        at++;
    return at;
}

static inline head_t head_of(const run_t *runs, u64 run, u64 common) {
    const run_t *of = &runs[run];
    const u8 *key = of->keys + of->key_ends[of->place];
    u64 bytes = (u64)(of->key_ends[of->place + 1] - of->key_ends[of->place]), number = 0;
    if (common + sizeof number <= bytes)
        number = big_endian(key + common);
    else
        for (u64 nth = common; nth < common + sizeof number; nth++)
            number = number << 8 | (nth < bytes ? key[nth] : 0);
    return (head_t){number, key, bytes, run};
}

static inline int compare(const head_t *one, const head_t *other) {
    int order = order_of(one->number, other->number);
    return order ? order : compare_bytes(one->key, (u32)one->bytes, other->key, (u32)other->bytes);
}

static inline int is_before(const head_t *one, const head_t *other) {
    int order = compare(one, other);
    return order ? order < 0 : one->run < other->run;
}

/* Put a head where it belongs, from a place of the heap on downwards. */
static void sift(head_t *heap, u64 count, u64 place, head_t head) {
    for (u64 below; (below = 2 * place + 1) < count; place = below) {
        if (below + 1 < count && is_before(&heap[below + 1], &heap[below]))
            below++;
        if (!is_before(&heap[below], &head))
            break;
        heap[place] = heap[below];
    }
    heap[place] = head;
}

/* One run of several.
 *
 * heap      room for a head of each
 * keys      room for all of their keys; key_ends for their number and one more; so have rows and row_ends
 *
 * Returns the number of different keys. */
EXPORT u64 kv_merge(run_t *runs, u64 count, head_t *heap, u8 *keys, i64 *key_ends, u8 *rows, i64 *row_ends) {
    const u8 *first = runs[0].keys + runs[0].key_ends[0];
    u64 common = (u64)(runs[0].key_ends[1] - runs[0].key_ends[0]), made = 0;
    for (u64 run = 0; run < count; run++) {
        const i64 *ends = runs[run].key_ends, *last = ends + runs[run].count - 1;
        u64 of_first = common_of(first, common, runs[run].keys + ends[0], (u64)(ends[1] - ends[0]));
        common = common_of(first, of_first, runs[run].keys + last[0], (u64)(last[1] - last[0]));
    }
    for (u64 run = count; run--;)
        heap[run] = head_of(runs, run, common);
    for (u64 place = count; place--;)
        sift(heap, count, place, heap[place]);
    key_ends[0] = row_ends[0] = 0;
    head_t before = {0};
    while (count) {
        head_t head = heap[0];
        run_t *run = &runs[head.run];
        i64 start = run->row_ends[run->place], bytes = run->row_ends[run->place + 1] - start;
        if (!made || compare(&before, &head)) {
            memcpy(keys + key_ends[made], head.key, head.bytes);
            key_ends[made + 1] = key_ends[made] + (i64)head.bytes;
            made++;
        }
        memcpy(rows + row_ends[made - 1], run->rows + start, (u64)bytes);
        row_ends[made] = row_ends[made - 1] + bytes;
        before = head;
        if (++run->place < run->count)
            sift(heap, count, 0, head_of(runs, head.run, common));
        else if (--count)
            sift(heap, count, 0, heap[count]);
    }
    return made;
}

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
