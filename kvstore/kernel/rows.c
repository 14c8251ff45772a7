/* Verifies, decodes and compares values of rows (docs/format.md, Row, Record, Row checksum).
 *
 * - Values lie in a buffer of the caller, which nothing else writes: what was checked stays as it was.
 * - Nothing outside a value is read: its size is held against the fixed part, and the sizes of its variable columns
 *   against what is left of it.
 * - What is not as it should be makes the caller ask Python, which says what is wrong; results then mean nothing.
 * - A row that is not there has no bytes. Its columns are null.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "sums.h"

enum { DONE, ASK_PYTHON }; /* kvstore/kernel/rows.py has the same */

enum { FIXED, FLAG, VARIABLE }; /* kinds of columns */
enum { ROWS_AT_ONCE = 128 };
#define OFFSET_MAX INT32_MAX

/* A column of a record that is wanted, or VARIABLE; kvstore/kernel/rows.py has the same.
 *
 * number           of its bit in the null bitmap
 * place, width     of its part of the fixed part
 * kind             of a VARIABLE column the fixed part has its size
 * values, offsets  where it is decoded to; values is NULL for a column that is not wanted
 * validity         zeros, or NULL if no row is null
 * nulls, bytes     results of kv_measure: null rows, and bytes of the values of a VARIABLE column
 */
typedef struct {
    u64 number, place, width, kind;
    u8 *values;
    int32_t *offsets;
    u8 *validity;
    u64 nulls, bytes;
} column_t;

/* Verify the checksums of rows, and that all were written with one schema.
 *
 * starts, ends     count positions of values in flat; equal where there is no row
 * key_starts, key_ends    likewise of the keys under which they were found, in keys
 * value_weights    as many as the longest value has words; key_weights likewise
 * schema_id        the schema of all; -1 if there is no row
 */
EXPORT int kv_verify(const u8 *flat, const i64 *starts, const i64 *ends, u64 count, const u8 *keys,
                     const i64 *key_starts, const i64 *key_ends, const u64 *value_weights, const u64 *key_weights,
                     int32_t *schema_id) {
    *schema_id = -1;
    for (u64 nth = 0; nth < count; nth++) {
        const u8 *value = flat + starts[nth];
        u64 bytes = (u64)(ends[nth] - starts[nth]);
        if (!bytes)
            continue;
        if (bytes % WORD)
            return ASK_PYTHON;
        u64 sum = key_sum(keys + key_starts[nth], (u64)(key_ends[nth] - key_starts[nth]), key_weights);
        for (u64 word = 0; word * WORD < bytes; word++)
            sum += word_at(value + word * WORD) * value_weights[word];
        u32 stored = half_at(value);
        /* The checksum was zero when the sum was taken. */
        if ((u32)mix(sum - stored * value_weights[0]) != stored)
            return ASK_PYTHON;
        int32_t its_schema = (int32_t)(half_at(value + SCHEMA_ID) & 0xFFFF);
        if (*schema_id >= 0 && its_schema != *schema_id)
            return ASK_PYTHON;
        *schema_id = its_schema;
    }
    return DONE;
}

/* Hash of one row, whose value is whole words, at least one. Sizes are what ctypes passes at half the cost of others. */
EXPORT u64 kv_hash(const u8 *key, int key_size, const u8 *value, int size) {
    u64 key_bytes = (u64)key_size, bytes = (u64)size, sum = key_bytes * GOLDEN, nth = 0;
    for (; (nth + 1) * WORD <= key_bytes; nth++)
        sum += word_at(key + nth * WORD) * weight(KEYS, nth);
    if (key_bytes % WORD)
        sum += rest_of(key, key_bytes) * weight(KEYS, nth);
    for (nth = 0; nth * WORD < bytes; nth++)
        sum += word_at(value + nth * WORD) * weight(VALUES, nth);
    return mix(sum - half_at(value) * weight(VALUES, 0));
}

/* Whether one row has its checksum. */
EXPORT int kv_is_right(const u8 *key, int key_size, const u8 *value, int size) {
    return size > 0 && size % WORD == 0 && key_size >= 0 && (u32)kv_hash(key, key_size, value, size) == half_at(value);
}

static inline int is_null(const u8 *bitmap, u64 column) { return bitmap[column >> 3] >> (column & 7) & 1; }

/* Count null rows, and bytes of variable columns.
 *
 * bitmap, bitmap_bytes    place and size of the null bitmap in a value
 * fixed            size of the fixed part
 * columns          all that are VARIABLE, in the order of the record, then others that are wanted
 * variable         how many are VARIABLE
 */
EXPORT int kv_measure(const u8 *flat, const i64 *starts, const i64 *ends, u64 count, u64 bitmap, u64 bitmap_bytes,
                      u64 fixed, column_t *columns, u64 width, u64 variable) {
    u64 absent = 0;
    for (u64 nth = 0; nth < width; nth++)
        columns[nth].nulls = columns[nth].bytes = 0;
    for (u64 row = 0; row < count; row++) {
        u64 bytes = (u64)(ends[row] - starts[row]), used = fixed;
        const u8 *value = flat + starts[row];
        if (!bytes) {
            absent++;
            continue;
        }
        if (bytes < fixed)
            return ASK_PYTHON;
        u8 any_null = 0;
        for (u64 nth = 0; nth < bitmap_bytes; nth++)
            any_null |= value[bitmap + nth];
        for (u64 nth = 0; any_null && nth < width; nth++)
            if (is_null(value + bitmap, columns[nth].number))
                columns[nth].nulls++;
        for (u64 nth = 0; nth < variable; nth++) {
            u64 size = half_at(value + columns[nth].place);
            used += size;
            columns[nth].bytes += size;
        }
        if (used > bytes)
            return ASK_PYTHON;
    }
    for (u64 nth = 0; nth < width; nth++) {
        columns[nth].nulls += absent;
        if (columns[nth].bytes > OFFSET_MAX)
            return ASK_PYTHON;
    }
    return DONE;
}

#define COPY_EACH(type)                                                                                                \
    for (u64 row = first; row < last; row++) {                                                                         \
        type item = 0;                                                                                                 \
        if (ends[row] != starts[row])                                                                                  \
            memcpy(&item, flat + starts[row] + column->place, sizeof item);                                            \
        memcpy(column->values + row * sizeof item, &item, sizeof item);                                                \
    }

static void decode_fixed(const u8 *flat, const i64 *starts, const i64 *ends, u64 first, u64 last,
                         const column_t *column) {
    if (column->width == 8) {
        COPY_EACH(u64)
    } else if (column->width == 4) {
        COPY_EACH(u32)
    } else if (column->width == 2) {
        COPY_EACH(uint16_t)
    } else if (column->width == 1) {
        COPY_EACH(u8)
    } else {
        for (u64 row = first; row < last; row++)
            if (ends[row] != starts[row])
                memcpy(column->values + row * column->width, flat + starts[row] + column->place, column->width);
            else
                memset(column->values + row * column->width, 0, column->width);
    }
}

/* Bits, least significant first; the buffer has zeros. */
static void decode_flags(const u8 *flat, const i64 *starts, const i64 *ends, u64 first, u64 last,
                         const column_t *column) {
    for (u64 row = first; row < last; row++)
        if (ends[row] != starts[row] && flat[(u64)starts[row] + column->place])
            column->values[row >> 3] |= (u8)(1u << (row & 7));
}

static void decode_validity(const u8 *flat, const i64 *starts, const i64 *ends, u64 first, u64 last, u64 bitmap,
                            const column_t *column) {
    for (u64 row = first; row < last; row++)
        if (ends[row] != starts[row] && !is_null(flat + starts[row] + bitmap, column->number))
            column->validity[row >> 3] |= (u8)(1u << (row & 7));
}

/* One variable column; moves the cursors of the rows to the next one. Its first offset is set. */
static void decode_variable(const u8 *flat, const i64 *starts, const i64 *ends, u64 first, u64 last,
                            const column_t *column, i64 *cursors) {
    u32 end = column->values ? (u32)column->offsets[first] : 0;
    for (u64 row = first; row < last; row++) {
        u32 size = ends[row] == starts[row] ? 0 : half_at(flat + starts[row] + column->place);
        if (column->values) {
            memcpy(column->values + end, flat + cursors[row], size);
            end += size;
            column->offsets[row + 1] = (int32_t)end;
        }
        cursors[row] += size;
    }
}

/* Decode rows that kv_measure has found whole, into buffers of the sizes that it gave. Some rows at a time, so that
 * they stay in the processor's cache while one column after the other is copied from them.
 *
 * columns          as there
 * cursors          count numbers that the function may use; NULL if no VARIABLE column is wanted
 */
EXPORT void kv_decode(const u8 *flat, const i64 *starts, const i64 *ends, u64 count, u64 bitmap, u64 fixed,
                      const column_t *columns, u64 width, i64 *cursors) {
    for (u64 nth = 0; nth < width; nth++)
        if (columns[nth].kind == VARIABLE && columns[nth].values)
            columns[nth].offsets[0] = 0;
    for (u64 first = 0, last; first < count; first = last) {
        last = count - first > ROWS_AT_ONCE ? first + ROWS_AT_ONCE : count;
        for (u64 row = first; cursors && row < last; row++)
            cursors[row] = starts[row] + (ends[row] == starts[row] ? 0 : (i64)fixed);
        for (u64 nth = 0; nth < width; nth++) {
            const column_t *column = &columns[nth];
            if (column->kind == VARIABLE ? !cursors : !column->values)
                continue;
            if (column->kind == VARIABLE)
                decode_variable(flat, starts, ends, first, last, column, cursors);
            else if (column->kind == FLAG)
                decode_flags(flat, starts, ends, first, last, column);
            else
                decode_fixed(flat, starts, ends, first, last, column);
            if (column->values && column->validity)
                decode_validity(flat, starts, ends, first, last, bitmap, column);
        }
    }
}

/* A column whose values are compared, or VARIABLE; kvstore/kernel/rows.py has the same. bit says which one it is in the
 * result; 0 for a column that only has its place before others. The others are as in column_t. */
typedef struct {
    u64 number, place, width, kind, bit;
} compared_t;

static inline int is_whole(const weights_t *weights, u64 key_sum, const u8 *value, u64 bytes, u64 fixed,
                           u64 schema_id) {
    if (bytes % WORD || bytes < fixed || (half_at(value + SCHEMA_ID) & 0xFFFF) != schema_id)
        return 0;
    u32 stored = half_at(value);
    return (u32)mix(key_sum + sum_of_value(weights, value, bytes) - stored * weights->of_values[0]) == stored;
}

/* Which columns of a row have other values after a change: verified rows of one schema.
 *
 * keys, key_ends   count keys: where each begins, and where the last one ends
 * flat, starts, ends    the rows before the change; later and its two the rows after it. Equal where there is no row
 * columns          all that are VARIABLE, in the order of the record, then others that are compared
 * differ           for each key the bits of the columns, all bits if there is only one row
 */
EXPORT int kv_differ(const u8 *keys, const i64 *key_ends, u64 count, const u8 *flat, const i64 *starts, const i64 *ends,
                     const u8 *later, const i64 *later_starts, const i64 *later_ends, u64 schema_id, u64 bitmap,
                     u64 fixed, const compared_t *columns, u64 width, u64 variable, u64 *differ) {
    weights_t weights = some_weights();
    for (u64 row = 0; row < count; row++) {
        const u8 *one = flat + starts[row], *other = later + later_starts[row];
        u64 bytes = (u64)(ends[row] - starts[row]), others = (u64)(later_ends[row] - later_starts[row]);
        u64 at = fixed, at_other = fixed, bits = 0;
        differ[row] = bytes || others ? UINT64_MAX : 0;
        u64 sum = sum_of_key(&weights, keys + key_ends[row], (u64)(key_ends[row + 1] - key_ends[row]));
        if ((bytes && !is_whole(&weights, sum, one, bytes, fixed, schema_id)) ||
            (others && !is_whole(&weights, sum, other, others, fixed, schema_id)))
            return ASK_PYTHON;
        if (!bytes || !others)
            continue;
        for (u64 nth = 0; nth < width; nth++) {
            const compared_t *column = &columns[nth];
            const u8 *cell = one + column->place, *its_other = other + column->place;
            u64 size = column->width, others_size = size;
            if (nth < variable) {
                size = half_at(cell);
                others_size = half_at(its_other);
                cell = one + at;
                its_other = other + at_other;
                at += size;
                at_other += others_size;
                if (at > bytes || at_other > others)
                    return ASK_PYTHON;
            }
            if (column->bit && (size != others_size || memcmp(cell, its_other, size) ||
                                is_null(one + bitmap, column->number) != is_null(other + bitmap, column->number)))
                bits |= column->bit;
        }
        differ[row] = bits;
    }
    return DONE;
}
