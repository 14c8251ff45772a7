/* CRC-32C, as logformat/checksum.py computes it: eight bytes at a time, by tables that are made when this is loaded. */

#ifndef KVSTORE_KERNEL_CRC_H
#define KVSTORE_KERNEL_CRC_H

#include "sums.h"

#define POLYNOMIAL 0x82F63B78u

static u32 crc_tables[WORD][256];

__attribute__((constructor)) static void make_crc_tables(void) {
    for (u32 byte = 0; byte < 256; byte++) {
        u32 crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        crc_tables[0][byte] = crc;
    }
    for (u32 byte = 0; byte < 256; byte++)
        for (int nth = 1; nth < WORD; nth++)
            crc_tables[nth][byte] = crc_tables[nth - 1][byte] >> 8 ^ crc_tables[0][crc_tables[nth - 1][byte] & 255];
}

/* The checksum of some bytes that follow those of another one; 0 for none. */
static u32 crc_after(u32 crc, const u8 *at, u64 bytes) {
    crc = ~crc;
    for (; bytes >= WORD; at += WORD, bytes -= WORD) {
        u64 word = word_at(at) ^ crc;
        crc = 0;
        for (int nth = 0; nth < WORD; nth++)
            crc ^= crc_tables[WORD - 1 - nth][word >> 8 * nth & 255];
    }
    for (; bytes; at++, bytes--)
        crc = crc >> 8 ^ crc_tables[0][(crc ^ *at) & 255];
    return ~crc;
}

#endif
