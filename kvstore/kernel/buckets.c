/* The bucket of a key (docs/format.md, Bucket): Apache Fluss's hash, as logformat/rows/bucketing.py computes it.
 *
 * - Only the bytes of the code are read.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "common.h"

#define SEED 42u
#define WORD 4

static inline u32 rotated(u32 number, int bits) { return number << bits | number >> (32 - bits); }

static inline u32 mixed_in(u32 hash, u32 word) {
    return rotated(hash ^ rotated(word * 0xCC9E2D51u, 15) * 0x1B873593u, 13) * 5 + 0xE6546B64u;
}

static inline u32 finished(u32 hash) {
    hash = (hash ^ hash >> 16) * 0x85EBCA6Bu;
    hash = (hash ^ hash >> 13) * 0xC2B2AE35u;
    return hash ^ hash >> 16;
}

/* The bucket of one code, of so many buckets; the bytes before start do not count. */
EXPORT int kv_bucket(const u8 *code, int bytes, int start, int buckets) {
    u32 hash = SEED;
    int at = start;
    if (start < 0 || buckets <= 0)
        return 0;
    for (; bytes - at >= WORD; at += WORD) {
        u32 word;
        memcpy(&word, code + at, sizeof word);
        hash = mixed_in(hash, word);
    }
    for (; at < bytes; at++)
        hash = mixed_in(hash, (u32)(int8_t)code[at]); /* signed, as in Java */
    hash = finished(hash ^ (u32)(bytes - start));
    hash = finished(mixed_in(0, hash) ^ WORD);
    /* As in Java: the absolute value, or 0 for the one number that has none. */
    return (int)((hash < 0x80000000u ? hash : hash == 0x80000000u ? 0 : 0u - hash) % (u32)buckets);
}
