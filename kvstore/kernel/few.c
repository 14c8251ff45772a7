/* Decodes a few rows, keys and values together, into columns as Arrow's C data interface has them: logformat/rows/.
 *
 * - The rows are bytes of the caller, which nothing else writes: what was checked stays as it was.
 * - Nothing outside of a key or a value is read: sizes in it are held against its own.
 * - What is not as it should be makes the caller ask Python, which says what is wrong; nothing is left then.
 * - The columns share one block of memory. Each of them, and the batch, holds it until it is released.
 */

#include "arrow.h"
#include "sums.h"

#include <stdlib.h>

enum { DONE, ASK_PYTHON };
enum { OF_VALUE, IN_KEY, NOWHERE }; /* where a column is; kvstore/kernel/few.py has the same, and the layout of a shape */
enum { ALIGNMENT = 64 };

/* A column that is wanted. In a value, place is where the fixed part has it, and number its bit among the nulls; in a
 * key, number says which column of the key it is. */
typedef struct {
    u64 from, kind, width, place, number;
} wanted_t;

/* A column of the key: how it is encoded, and its width. */
typedef struct {
    u64 how, width;
} coded_t;

/* Rows of one schema: place of the null bitmap in a value and its size, size of the fixed part, and numbers of the
 * columns that are wanted, of those of the key, and of those of values whose sizes differ. */
typedef struct {
    u64 schema_id, bitmap, bitmap_bytes, fixed, wanted, coded, variable;
    u64 rest[]; /* wanted_t of each, coded_t of each, and the place of each variable column, in order */
} shape_t;

/* What a column comes to. */
typedef struct {
    u64 nulls, bytes, cursor;
    u8 *validity, *data;
    int32_t *offsets;
} column_t;

typedef struct {
    u64 holders;
} block_t;

static inline const wanted_t *wanted_of(const shape_t *shape) { return (const wanted_t *)shape->rest; }

static inline const coded_t *coded_of(const shape_t *shape) {
    return (const coded_t *)(wanted_of(shape) + shape->wanted);
}

static inline const u64 *variable_of(const shape_t *shape) { return (const u64 *)(coded_of(shape) + shape->coded); }

static void let_go(arrow_array_t *array) {
    block_t *block = array->private_data;
    array->release = NULL;
    if (__atomic_sub_fetch(&block->holders, 1, __ATOMIC_ACQ_REL) == 0)
        free(block);
}

static void release_batch(arrow_array_t *batch) {
    for (i64 nth = 0; nth < batch->n_children; nth++)
        if (batch->children[nth]->release)
            batch->children[nth]->release(batch->children[nth]);
    let_go(batch);
}

/* Bytes of the code of a text, with its end; 0 if it has none. */
static inline u64 text_code_bytes(const u8 *code, u64 room) {
    const u8 *end = memchr(code, END, room);
    return end ? (u64)(end - code) + 1 : 0;
}

/* The text of a code, without its end; -1 if it is none. With no target it is only measured. */
static i64 text_of(const u8 *code, u64 bytes, u8 *target) {
    if (!memchr(code, ESCAPE, bytes)) {
        if (target)
            memcpy(target, code, bytes);
        return (i64)bytes;
    }
    i64 size = 0;
    for (u64 nth = 0; nth < bytes; nth++, size++) {
        u8 byte = code[nth];
        if (byte == ESCAPE) {
            if (++nth == bytes || code[nth] < 1 || code[nth] > 2)
                return -1;
            byte = code[nth] - 1;
        }
        if (target)
            target[size] = byte;
    }
    return size;
}

static inline void number_of_code(const u8 *code, u64 width, u64 how, u8 *target) {
    for (u64 nth = 0; nth < width; nth++)
        target[nth] = code[how == OPAQUE ? nth : width - 1 - nth];
    if (how == SIGNED)
        target[width - 1] ^= SIGN;
}

static inline void set_bit(u8 *bits, u64 nth) { bits[nth >> 3] |= (u8)(1u << (nth & 7)); }

/* One row: verified and measured if the columns have no memory yet, else put into them. */
static int row(const shape_t *shape, column_t *columns, const u8 *key, u64 key_bytes, const u8 *value, u64 value_bytes,
               u64 nth, int is_measured) {
    const u8 *nulls = value + shape->bitmap, *in_value[KEY_COLUMNS_MAX], *in_key[KEY_COLUMNS_MAX];
    const coded_t *coded = coded_of(shape);
    const u64 *variable = variable_of(shape);
    u64 sizes[KEY_COLUMNS_MAX], code_bytes[KEY_COLUMNS_MAX], used = shape->fixed, at = 1;
    for (u64 each = 0; each < shape->variable; each++) {
        in_value[each] = value + used;
        used += sizes[each] = half_at(value + variable[each]);
        if (used > value_bytes)
            return ASK_PYTHON;
    }
    for (u64 each = 0; each < shape->coded; each++) {
        in_key[each] = key + at;
        code_bytes[each] =
            coded[each].how == TEXT ? text_code_bytes(key + at, key_bytes - at) : coded[each].width;
        at += code_bytes[each];
        if (!code_bytes[each] || at > key_bytes)
            return ASK_PYTHON;
    }
    if (at != key_bytes)
        return ASK_PYTHON;
    const wanted_t *wanted = wanted_of(shape);
    for (u64 each = 0; each < shape->wanted; each++) {
        const wanted_t *its = &wanted[each];
        column_t *column = &columns[each];
        int is_null = its->from == NOWHERE || (its->from == OF_VALUE && bit_at(nulls, its->number));
        column->nulls += !is_measured && is_null;
        if (is_measured && column->validity && !is_null)
            set_bit(column->validity, nth);
        if (its->kind == VARIABLE) {
            u64 size = its->from == OF_VALUE ? sizes[its->place] : 0;
            if (its->from == IN_KEY) {
                u64 number = its->number;
                i64 bytes = text_of(in_key[number], code_bytes[number] - 1, is_measured ? column->data + column->cursor : NULL);
                if (bytes < 0)
                    return ASK_PYTHON;
                size = (u64)bytes;
            } else if (is_measured && size)
                memcpy(column->data + column->cursor, in_value[its->place], size);
            column->bytes += is_measured ? 0 : size;
            column->cursor += is_measured ? size : 0;
            if (is_measured)
                column->offsets[nth + 1] = (int32_t)column->cursor;
        } else if (is_measured && its->from != NOWHERE) {
            const u8 *cell = its->from == IN_KEY ? in_key[its->number] : value + its->place;
            if (its->kind == FLAG) {
                if (*cell)
                    set_bit(column->data, nth);
            } else if (its->from == IN_KEY)
                number_of_code(cell, its->width, coded[its->number].how, column->data + nth * its->width);
            else if (its->width == WORD)
                memcpy(column->data + nth * WORD, cell, WORD);
            else
                memcpy(column->data + nth * its->width, cell, its->width);
        }
    }
    return DONE;
}

static inline u64 aligned(u64 bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static int rows(const shape_t *shape, column_t *columns, const u8 *flat, const u32 *sizes, u64 count, int is_measured) {
    weights_t weights = is_measured ? (weights_t){{0}, {0}} : some_weights();
    for (u64 nth = 0; nth < count; nth++) {
        u64 key_bytes = sizes[2 * nth], value_bytes = sizes[2 * nth + 1];
        const u8 *key = flat, *value = flat + key_bytes;
        flat = value + value_bytes;
        if (!is_measured) {
            if (!key_bytes || key_bytes > KEY_BYTES_MAX || value_bytes % WORD || value_bytes < shape->fixed ||
                (half_at(value + SCHEMA_ID) & 0xFFFF) != shape->schema_id)
                return ASK_PYTHON;
            u32 stored = half_at(value);
            u64 sum = sum_of_key(&weights, key, key_bytes) + sum_of_value(&weights, value, value_bytes);
            if ((u32)mix(sum - stored * weights.of_values[0]) != stored)
                return ASK_PYTHON;
        }
        if (row(shape, columns, key, key_bytes, value, value_bytes, nth, is_measured) != DONE)
            return ASK_PYTHON;
    }
    return DONE;
}

/* Where the buffers of a column are in a block from a place on; returns the place after them. */
static u64 laid_out(const wanted_t *wanted, column_t *column, u64 count, u8 *block, u64 at) {
    u64 bits = (count + 7) / 8;
    u64 data = wanted->kind == VARIABLE ? column->bytes : wanted->kind == FLAG ? bits : count * wanted->width;
    column->validity = column->nulls ? block + at : NULL;
    at += column->nulls ? aligned(bits) : 0;
    column->offsets = wanted->kind == VARIABLE ? (int32_t *)(block + at) : NULL;
    at += wanted->kind == VARIABLE ? aligned((count + 1) * sizeof *column->offsets) : 0;
    column->data = block + at;
    return at + aligned(data);
}

/* Decode rows.
 *
 * flat, sizes      key and value of each row, one after the other, and the sizes of all of these
 * batch            where the rows come to be, a struct with a child for each column
 */
EXPORT int kv_few(const shape_t *shape, const u8 *flat, const u32 *sizes, u64 count, arrow_array_t *batch) {
    u64 width = shape->wanted;
    const wanted_t *wanted = wanted_of(shape);
    column_t *columns = calloc(width ? width : 1, sizeof *columns);
    if (!columns)
        return ASK_PYTHON;
    int status = rows(shape, columns, flat, sizes, count, 0);
    u64 head = aligned(sizeof(block_t) + sizeof(void *) + width * (sizeof(arrow_array_t) + 4 * sizeof(void *))), end = head;
    for (u64 nth = 0; nth < width; nth++)
        end = laid_out(&wanted[nth], &columns[nth], count, NULL, end);
    u8 *block = status == DONE && end < INT32_MAX ? aligned_alloc(ALIGNMENT, end) : NULL;
    if (!block) {
        free(columns);
        return ASK_PYTHON;
    }
    memset(block, 0, end);
    *(block_t *)block = (block_t){.holders = width + 1};
    const void **buffers = (const void **)(block + sizeof(block_t));
    *batch = (arrow_array_t){.length = (i64)count, .n_buffers = 1, .n_children = (i64)width, .buffers = buffers++};
    batch->children = (arrow_array_t **)(buffers + 3 * width);
    arrow_array_t *children = (arrow_array_t *)(batch->children + width);
    u64 at = head;
    for (u64 nth = 0; nth < width; nth++, buffers += 3) {
        column_t *column = &columns[nth];
        at = laid_out(&wanted[nth], column, count, block, at);
        buffers[0] = column->validity;
        buffers[1] = column->offsets ? (const void *)column->offsets : column->data;
        buffers[2] = column->offsets ? column->data : NULL;
        children[nth] = (arrow_array_t){.length = (i64)count,
                                        .null_count = (i64)column->nulls,
                                        .n_buffers = column->offsets ? 3 : 2,
                                        .buffers = buffers,
                                        .release = let_go,
                                        .private_data = block};
        batch->children[nth] = &children[nth];
    }
    rows(shape, columns, flat, sizes, count, 1);
    batch->release = release_batch;
    batch->private_data = block;
    free(columns);
    return DONE;
}
