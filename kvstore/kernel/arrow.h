/* Columns of a record batch as Arrow hands them over (its C data interface), and how values of a table lie in memory. */

#ifndef KVSTORE_KERNEL_ARROW_H
#define KVSTORE_KERNEL_ARROW_H

#include "common.h"

enum { FIXED, FLAG, VARIABLE }; /* kinds of columns */
enum { KEY_COLUMNS_MAX = 64 };
#define OF_KEY UINT32_MAX /* the place of a column of the key, which no value has */

/* The struct of the interface. */
typedef struct arrow_array {
    i64 length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct arrow_array **children;
    struct arrow_array *dictionary;
    void (*release)(struct arrow_array *);
    void *private_data;
} arrow_array_t;

/* A column of a table; kvstore/kernel/writes.py has the same.
 *
 * kind, width  as in rows.c
 * place        of its part in the fixed part of a value, or OF_KEY
 * number       of its bit in the null bitmap
 */
typedef struct {
    u64 kind, width, place, number;
} part_t;

/* A table. Values have a head of 6 bytes: checksum and schema id.
 *
 * bitmap, fixed  place of the null bitmap in a value, and size of the fixed part
 * parts          width of them, in the order of the table's columns
 */
typedef struct {
    u64 schema_id, bitmap, fixed, width;
    part_t parts[];
} table_t;

enum { OPAQUE, UNSIGNED, SIGNED, BIT, TEXT }; /* how a column is encoded; kvstore/kernel/writes.py has the same */
enum { ROW = 2, END = 0, ESCAPE = 1, SIGN = 0x80, KEY_BYTES_MAX = 511 };

/* A column of the key: its place among the columns, and how it is encoded. */
typedef struct {
    u64 column, how;
} key_part_t;

/* One column of the rows at hand, whose buffers may begin at any address; validity is NULL if no row is null. */
typedef struct {
    const u8 *validity, *data, *offsets;
    u64 first; /* the row of its buffers that is row 0 */
} cells_t;

static inline int bit_at(const u8 *bits, u64 nth) { return bits[nth >> 3] >> (nth & 7) & 1; }

static inline int has(const cells_t *cells, u64 row) {
    return !cells->validity || bit_at(cells->validity, cells->first + row);
}

/* Where the text of a row begins in the data; that of the row after it is where it ends. */
static inline i64 text_start(const cells_t *cells, u64 row) {
    int32_t offset;
    memcpy(&offset, cells->offsets + (cells->first + row) * sizeof offset, sizeof offset);
    return offset;
}

static inline u64 text_bytes(const cells_t *cells, u64 row) {
    return (u64)(text_start(cells, row + 1) - text_start(cells, row));
}

static inline const u8 *text_at(const cells_t *cells, u64 row) { return cells->data + text_start(cells, row); }

/* Bytes of a text, of which so many have room: it may have changed since there was room for it. */
static inline u64 at_most(u64 bytes, u64 room) { return bytes < room ? bytes : room; }

/* The nth column of rows. */
static inline cells_t cells_of(const arrow_array_t *rows, const table_t *table, u64 nth) {
    const arrow_array_t *column = rows->children[nth];
    int is_text = table->parts[nth].kind == VARIABLE;
    return (cells_t){
        .validity = column->null_count ? column->buffers[0] : NULL,
        .data = column->buffers[is_text ? 2 : 1],
        .offsets = is_text ? column->buffers[1] : NULL,
        .first = (u64)(column->offset + rows->offset),
    };
}

/* Whether rows have the buffers that columns of the table have. */
static inline int fit(const arrow_array_t *rows, const table_t *table) {
    if ((u64)rows->n_children != table->width)
        return 0;
    for (u64 nth = 0; nth < table->width; nth++) {
        const arrow_array_t *column = rows->children[nth];
        i64 buffers = table->parts[nth].kind == VARIABLE ? 3 : 2;
        if (column->n_buffers != buffers || column->dictionary || column->length < rows->length)
            return 0;
        if (rows->length && !column->buffers[1])
            return 0;
    }
    return 1;
}

#endif
