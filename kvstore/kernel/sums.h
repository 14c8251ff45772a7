/* Checksums of rows (docs/format.md, Row checksum), as logformat/checksum.py computes them. */

#ifndef KVSTORE_KERNEL_SUMS_H
#define KVSTORE_KERNEL_SUMS_H

#include "common.h"

enum { WORD = 8, SCHEMA_ID = 4, WEIGHTS = 64 };
#define GOLDEN 0x9E3779B97F4A7C15u
#define VALUES 0u
#define KEYS ((u64)1 << 63) /* seeds of the weights */

static inline u64 word_at(const u8 *at) {
    u64 word;
    memcpy(&word, at, sizeof word);
    return word;
}

static inline u32 half_at(const u8 *at) {
    u32 half;
    memcpy(&half, at, sizeof half);
    return half;
}

static inline u64 mix(u64 word) {
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/* The last bytes of a string that are no whole word, with zeros after them; there is at least one. */
static inline u64 rest_of(const u8 *string, u64 bytes) {
    u64 rest = 0;
    if (bytes >= WORD)
        return word_at(string + bytes - WORD) >> 8 * (WORD - bytes % WORD);
    for (u64 nth = bytes; nth-- > 0;)
        rest = rest << 8 | string[nth];
    return rest;
}

static inline u64 key_sum(const u8 *key, u64 bytes, const u64 *weights) {
    u64 sum = bytes * GOLDEN, nth = 0;
    for (; (nth + 1) * WORD <= bytes; nth++)
        sum += word_at(key + nth * WORD) * weights[nth];
    return bytes % WORD ? sum + rest_of(key, bytes) * weights[nth] : sum;
}

/* Weight of the nth word of a value, or with seed 1 << 63 of a key. */
static inline u64 weight(u64 seed, u64 nth) { return mix(seed + (nth + 1) * GOLDEN) | 1; }

/* Weights of the first words, computed once in a call. */
typedef struct {
    u64 of_values[WEIGHTS], of_keys[WEIGHTS];
} weights_t;

static inline weights_t some_weights(void) {
    weights_t weights;
    for (u64 nth = 0; nth < WEIGHTS; nth++) {
        weights.of_values[nth] = weight(VALUES, nth);
        weights.of_keys[nth] = weight(KEYS, nth);
    }
    return weights;
}

/* Sum of a key of at most as many words as there are weights; LMDB's limit is 511 bytes. */
static inline u64 sum_of_key(const weights_t *weights, const u8 *key, u64 bytes) {
    return key_sum(key, bytes, weights->of_keys);
}

/* Sum of a value of whole words. */
static inline u64 sum_of_value(const weights_t *weights, const u8 *value, u64 bytes) {
    u64 sum = 0, words = bytes / WORD, nth = 0;
    for (; nth < words && nth < WEIGHTS; nth++)
        sum += word_at(value + nth * WORD) * weights->of_values[nth];
    for (; nth < words; nth++)
        sum += word_at(value + nth * WORD) * weight(VALUES, nth);
    return sum;
}

#endif
