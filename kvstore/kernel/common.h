/* What the files of the kernel share: integers, and how bytes are read. */

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

#endif
