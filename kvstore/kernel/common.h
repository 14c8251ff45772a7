/* What the files of the kernel share: integers, how bytes are read, and the order of byte strings.
 *
 * - Integers among bytes are little-endian, as the machine has them: for another one this does not compile.
 * - They may be at any address, and are copied from and to it; find.c says which of its own are not.
 * - Memory of 64-bit machines only: Python gives addresses as such integers.
 */

#ifndef KVSTORE_KERNEL_COMMON_H
#define KVSTORE_KERNEL_COMMON_H

#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Files of stores have the byte order of little-endian machines; the kernel knows no other."
#endif

_Static_assert(sizeof(void *) == 8, "Python gives addresses as 64-bit integers.");

#define EXPORT __attribute__((visibility("default")))

typedef uint8_t u8;
typedef uint16_t u16 __attribute__((may_alias));
typedef uint32_t u32;
typedef uint64_t u64 __attribute__((may_alias));
typedef int64_t i64;

static inline u64 big_endian(const u8 *at) {
    u64 word;
    memcpy(&word, at, sizeof word);
    return __builtin_bswap64(word);
}

static inline int order_of(u64 one, u64 other) { return (one > other) - (one < other); }

/* LMDB's order: bytes, and of two of which one begins the other, the shorter first. */
static inline int compare_bytes(const u8 *one, u32 one_bytes, const u8 *other, u32 other_bytes) {
    u32 common = one_bytes < other_bytes ? one_bytes : other_bytes, at = 0;
    int order = 0;
    if (common >= 8 && common <= 16) {
        /* No branch: keys of numbers have these sizes, and the processor can't foresee where two differ. */
        int first = order_of(big_endian(one), big_endian(other));
        int last = order_of(big_endian(one + common - 8), big_endian(other + common - 8));
        order = 2 * first + last;
    } else {
        for (; !order && at + 8 <= common; at += 8)
            order = order_of(big_endian(one + at), big_endian(other + at));
        for (; !order && at < common; at++)
            order = order_of(one[at], other[at]);
    }
    return 2 * order + order_of(one_bytes, other_bytes);
}

#endif
