/* Reads leaves of an index, and finds the rows in them (docs/format.md, Index and "Scan of an index").
 *
 * - Pages are first copied into a buffer of the caller, which nothing else writes: what was checked stays as it was.
 * - Nothing outside a page of the buffer is read, whatever its bytes are: every position in it is held against it.
 * - What is not as it should be makes the caller ask Python, which says what is wrong; results then mean nothing. So
 *   does a value that has pages of its own.
 * - The checks are those of kvstore/index/leaves.py: what it refuses is not found here, and the other way round.
 * - No function keeps anything, allocates, or calls Python.
 */

#define _XOPEN_SOURCE 700
#include "common.h"

#include <errno.h>
#include <unistd.h>

enum { DONE, ASK_PYTHON }; /* kvstore/kernel/leaves.py has the same */

enum { HEAD_BYTES = 16, NODE_BYTES = 8, LEAF = 2 };

/* Read pages of a file, one after the other into a buffer; neighbours at once.
 *
 * numbers          count numbers of pages, which rise
 */
EXPORT int kv_read(int file, u64 page_bytes, const i64 *numbers, u64 count, u8 *target) {
    for (u64 first = 0, last; first < count; first = last) {
        for (last = first + 1; last < count && numbers[last] == numbers[last - 1] + 1;)
            last++;
        u64 start = (u64)numbers[first] * page_bytes, bytes = (last - first) * page_bytes;
        while (bytes) {
            ssize_t got = pread(file, target, bytes, (off_t)start);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                return ASK_PYTHON;
            target += got, start += (u64)got, bytes -= (u64)got;
        }
    }
    return DONE;
}

static inline u16 half_at(const u8 *at) {
    u16 half;
    memcpy(&half, at, sizeof half);
    return half;
}

static inline u64 word_at(const u8 *at) {
    u64 word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Find the rows of leaves that lie in a buffer.
 *
 * places, numbers      where in the buffer each page begins, and its number; in the order of keys
 * last, last_bytes     the key before the first row; no row may come before it
 * rows_max             size of the three results, which are positions in the buffer
 * keys, values, ends   where the key of each row begins, where its value does, which is the key's end, and the value's end
 * rows                 how many rows were found
 */
EXPORT int kv_leaves(const u8 *flat, u64 page_bytes, const i64 *places, const i64 *numbers, u64 count, const u8 *last,
                     u32 last_bytes, u64 rows_max, i64 *keys, i64 *values, i64 *ends, u64 *rows) {
    u64 row = 0;
    for (u64 nth = 0; nth < count; nth++) {
        const u8 *page = flat + places[nth];
        u64 lower = half_at(page + 12), upper = half_at(page + 14), filled = 0;
        if (word_at(page) != (u64)numbers[nth] || half_at(page + 10) != LEAF || lower & 1 || lower <= HEAD_BYTES ||
            upper < lower || upper > page_bytes || (lower - HEAD_BYTES) / 2 > rows_max - row)
            return ASK_PYTHON;
        for (u64 pointer = HEAD_BYTES; pointer < lower; pointer += 2, row++) {
            u64 node = half_at(page + pointer);
            if (node & 1 || node < upper || node > page_bytes - NODE_BYTES)
                return ASK_PYTHON;
            u64 head = word_at(page + node), key = node + NODE_BYTES, value = key + (head >> 48);
            u64 end = value + (head & 0xFFFFFFFF);
            /* Flags are of values with pages of their own, and no row has an empty value. */
            if (head >> 32 & 0xFFFF || end == value || end + (end & 1) > page_bytes)
                return ASK_PYTHON;
            u32 key_bytes = (u32)(value - key);
            if (compare_bytes(page + key, key_bytes, last, last_bytes) <= 0)
                return ASK_PYTHON;
            last = page + key;
            last_bytes = key_bytes;
            /* Keys rise, so no two nodes are the same; those that fill their part of the page leave out none. */
            filled += end + (end & 1) - node;
            keys[row] = places[nth] + (i64)key;
            values[row] = places[nth] + (i64)value;
            ends[row] = places[nth] + (i64)end;
        }
        if (filled != page_bytes - upper)
            return ASK_PYTHON;
    }
    *rows = row;
    return DONE;
}
