/* Makes the change records of a batch (docs/format.md, Change records, Record batch): kvstore/bucket/merge/cdc.py in
 * one pass.
 *
 * - The columns are valid, as in encode.c; what is written stays in its place even if they change meanwhile. Old values
 *   lie in a buffer of the caller, which nothing else writes; their checksums are verified, and their sizes held against
 *   what they say that they have.
 * - Places of operations and of keys are held against their numbers.
 * - kv_records says what kv_fill writes, which writes no more than that.
 * - What is not as it should be makes the caller ask Python, which says what is wrong; results then mean nothing.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "arrow.h"
#include "sums.h"

enum { DONE, ASK_PYTHON }; /* kvstore/kernel/writes.py has the same */
enum { INSERT = 1, BEFORE, AFTER, DELETE };
enum { NO_ROW = -1, STORED = -2 }; /* of a row before an operation; STORED and below: positions of old values */
enum { ALIGNMENT = 8 };
#define OFFSET_MAX INT32_MAX
#define BODY_MAX ((u64)1 << 27)

/* The operations of a batch, and the rows that the index had; kvstore/kernel/writes.py has the same.
 *
 * operations, keys   how many
 * order              operations by key; those of the nth key are from starts[nth] to lasts[nth]
 * is_delete          for each operation
 * lengths            for each key, the size of its old value; 0 if it has none
 * old, old_bytes     old values, one after the other
 * sums               of all keys
 * preimages          whether the rows before updates are recorded
 * inserts            whether inserts are told from updates
 */
typedef struct {
    u64 operations, keys;
    const i64 *order, *starts, *lasts;
    const u8 *is_delete, *old;
    const i64 *lengths;
    const u64 *sums;
    u64 old_bytes, preimages, inserts;
} batch_t;

/* Records: for each its type, the operation whose row it has, and the position of the old value that has the columns
 * outside the key, or -1. There are at most two for each operation. */
typedef struct {
    u8 *types;
    i64 *rows, *values;
} records_t;

static u64 padded(u64 bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* Verify an old value; nonzero if it is right, and has the table's schema. */
static int is_right(const table_t *table, const weights_t *weights, u64 sum, const u8 *value, u64 bytes, u64 *digest) {
    if (bytes % WORD || bytes < table->fixed)
        return 0;
    u32 stored = half_at(value);
    u64 hash = mix(sum + sum_of_value(weights, value, bytes) - stored * weights->of_values[0]);
    if ((u32)hash != stored || (half_at(value + SCHEMA_ID) & 0xFFFF) != table->schema_id)
        return 0;
    u64 used = table->fixed;
    for (u64 column = 0; column < table->width; column++)
        if (table->parts[column].kind == VARIABLE && table->parts[column].place != OF_KEY)
            used += half_at(value + table->parts[column].place);
    *digest += hash;
    return used <= bytes;
}

/* For each operation the row before it. */
static int rows_before(const table_t *table, const batch_t *batch, i64 *before, u64 *digest) {
    weights_t weights = some_weights();
    u64 start = 0;
    *digest = 0;
    for (u64 operation = 0; operation < batch->operations; operation++)
        before[operation] = NO_ROW;
    for (u64 key = 0; key < batch->keys; key++) {
        i64 row = NO_ROW, last = batch->lasts[key];
        u64 bytes = (u64)batch->lengths[key];
        if (bytes) {
            if (bytes > batch->old_bytes - start ||
                !is_right(table, &weights, batch->sums[key], batch->old + start, bytes, digest))
                return ASK_PYTHON;
            row = STORED - (i64)start;
            start += bytes;
        }
        if (batch->starts[key] < 0 || last >= (i64)batch->operations)
            return ASK_PYTHON;
        for (i64 nth = batch->starts[key]; nth <= last; nth++) {
            i64 operation = batch->order[nth];
            if (operation < 0 || operation >= (i64)batch->operations)
                return ASK_PYTHON;
            before[operation] = row;
            row = batch->is_delete[operation] ? NO_ROW : operation;
        }
    }
    return DONE;
}

static inline void record(const records_t *records, u64 nth, u8 type, i64 operation, i64 row) {
    records->types[nth] = type;
    records->rows[nth] = row <= STORED ? operation : row;
    records->values[nth] = row <= STORED ? STORED - row : -1;
}

static u64 take_records(const batch_t *batch, const i64 *before, const records_t *records) {
    u64 count = 0;
    for (i64 nth = 0; nth < (i64)batch->operations; nth++) {
        int was = before[nth] != NO_ROW, is = !batch->is_delete[nth];
        if (was && (!is || batch->preimages))
            record(records, count++, is ? BEFORE : DELETE, nth, before[nth]);
        if (is)
            record(records, count++, was || !batch->inserts ? AFTER : INSERT, nth, nth);
    }
    return count;
}

static inline int is_null(const u8 *bitmap, u64 number) { return bitmap[number >> 3] >> (number & 7) & 1; }

/* Nulls of a column among the records, and bytes of its texts. */
static void measure(const table_t *table, const part_t *part, const cells_t *cells, const u8 *old,
                    const records_t *records, u64 count, u64 *nulls, u64 *bytes) {
    *nulls = *bytes = 0;
    if (part->place == OF_KEY) {
        for (u64 nth = 0; part->kind == VARIABLE && nth < count; nth++)
            *bytes += text_bytes(cells, (u64)records->rows[nth]);
        return;
    }
    for (u64 nth = 0; nth < count; nth++) {
        if (records->values[nth] >= 0) {
            const u8 *value = old + records->values[nth];
            if (is_null(value + table->bitmap, part->number))
                ++*nulls;
            if (part->kind == VARIABLE)
                *bytes += half_at(value + part->place);
        } else if (!has(cells, (u64)records->rows[nth]))
            ++*nulls;
        else if (part->kind == VARIABLE)
            *bytes += text_bytes(cells, (u64)records->rows[nth]);
    }
}

/* Make the records of a batch, and say where their columns go.
 *
 * before   a number for each operation, which the function may use
 * nodes    for each column: records, nulls; buffers: position and size of its validity, of its offsets if it is
 *          VARIABLE, and of its data, all of them in the body of an Arrow message
 * results  number of records, sum of the hashes of old values, bytes of the body
 */
EXPORT int kv_records(const table_t *table, const arrow_array_t *rows, const batch_t *batch, i64 *before, u8 *types,
                      i64 *record_rows, i64 *record_values, u64 *nodes, u64 *buffers, u64 *results) {
    records_t records = {types, record_rows, record_values};
    if (!fit(rows, table) || (u64)rows->length != batch->operations ||
        rows_before(table, batch, before, &results[1]))
        return ASK_PYTHON;
    u64 count = take_records(batch, before, &records), end = 0;
    for (u64 column = 0; column < table->width; column++) {
        const part_t *part = &table->parts[column];
        cells_t cells = cells_of(rows, table, column);
        u64 nulls, bytes, bits = (count + 7) / 8;
        measure(table, part, &cells, batch->old, &records, count, &nulls, &bytes);
        if (bytes > OFFSET_MAX)
            return ASK_PYTHON;
        *nodes++ = count;
        *nodes++ = nulls;
        u64 sizes[] = {nulls ? bits : 0, (count + 1) * sizeof(int32_t), bytes};
        if (part->kind != VARIABLE)
            sizes[2] = part->kind == FLAG ? bits : count * part->width;
        for (int nth = 0; nth < 3; nth++) {
            if (nth == 1 && part->kind != VARIABLE)
                continue;
            *buffers++ = end;
            *buffers++ = sizes[nth];
            end += padded(sizes[nth]);
        }
        if (end > BODY_MAX)
            return ASK_PYTHON;
    }
    results[0] = count;
    results[2] = end;
    return DONE;
}

#define FILL_EACH(type)                                                                                                \
    for (u64 nth = 0; nth < count; nth++) {                                                                            \
        i64 value = part->place == OF_KEY ? -1 : records->values[nth];                                                 \
        u64 row = (u64)records->rows[nth];                                                                             \
        if (value >= 0)                                                                                                \
            memcpy(data + nth * sizeof(type), old + value + part->place, sizeof(type));                                \
        else if (has(cells, row))                                                                                      \
            memcpy(data + nth * sizeof(type), cells->data + (cells->first + row) * sizeof(type), sizeof(type));        \
    }

static void fill_fixed(const part_t *part, const cells_t *cells, const u8 *old, const records_t *records, u64 count,
                       u8 *data) {
    if (part->width == 8) {
        FILL_EACH(u64)
    } else if (part->width == 4) {
        FILL_EACH(u32)
    } else if (part->width == 2) {
        FILL_EACH(uint16_t)
    } else if (part->width == 1) {
        FILL_EACH(u8)
    } else {
        for (u64 nth = 0; nth < count; nth++) {
            i64 value = part->place == OF_KEY ? -1 : records->values[nth];
            u64 row = (u64)records->rows[nth];
            if (value >= 0)
                memcpy(data + nth * part->width, old + value + part->place, part->width);
            else if (has(cells, row))
                memcpy(data + nth * part->width, cells->data + (cells->first + row) * part->width, part->width);
        }
    }
}

/* Bits, least significant first. */
static void fill_flags(const part_t *part, const cells_t *cells, const u8 *old, const records_t *records, u64 count,
                       u8 *data) {
    for (u64 nth = 0; nth < count; nth++) {
        i64 value = part->place == OF_KEY ? -1 : records->values[nth];
        u64 row = (u64)records->rows[nth];
        int flag = value >= 0 ? old[(u64)value + part->place] != 0
                              : has(cells, row) && bit_at(cells->data, cells->first + row);
        data[nth >> 3] |= (u8)(flag << (nth & 7));
    }
}

static void fill_validity(const table_t *table, const part_t *part, const cells_t *cells, const u8 *old,
                          const records_t *records, u64 count, u8 *bits) {
    for (u64 nth = 0; nth < count; nth++) {
        int valid = records->values[nth] >= 0 ? !is_null(old + records->values[nth] + table->bitmap, part->number)
                                              : has(cells, (u64)records->rows[nth]);
        bits[nth >> 3] |= (u8)(valid << (nth & 7));
    }
}

/* One VARIABLE column, of room bytes at most; moves the cursors to the next one. */
static void fill_texts(const part_t *part, const cells_t *cells, const u8 *old, const records_t *records, u64 count,
                       i64 *cursors, u8 *offsets, u8 *data, u64 room) {
    u32 end = 0;
    for (u64 nth = 0; nth < count; nth++) {
        i64 value = part->place == OF_KEY ? -1 : records->values[nth];
        u64 row = (u64)records->rows[nth];
        u32 size = 0;
        const u8 *text = NULL;
        if (value >= 0) {
            size = half_at(old + value + part->place);
            text = old + cursors[nth];
            cursors[nth] += size;
        } else if (has(cells, row)) {
            size = (u32)at_most(text_bytes(cells, row), room - end);
            text = text_at(cells, row);
        }
        memcpy(offsets + nth * sizeof end, &end, sizeof end);
        if (size)
            memcpy(data + end, text, size);
        end += size;
    }
    memcpy(offsets + count * sizeof end, &end, sizeof end);
}

/* Write the columns of the records that kv_records has made into a body of zeros.
 *
 * cursors  a number for each record, which the function may use
 */
EXPORT void kv_fill(const table_t *table, const arrow_array_t *rows, const u8 *old, u64 count, u8 *types,
                    i64 *record_rows, i64 *record_values, const u64 *buffers, i64 *cursors, u8 *body) {
    records_t records = {types, record_rows, record_values};
    for (u64 nth = 0; nth < count; nth++)
        cursors[nth] = record_values[nth] < 0 ? 0 : record_values[nth] + (i64)table->fixed;
    for (u64 column = 0; column < table->width; column++) {
        const part_t *part = &table->parts[column];
        cells_t cells = cells_of(rows, table, column);
        if (buffers[1])
            fill_validity(table, part, &cells, old, &records, count, body + buffers[0]);
        buffers += 2;
        if (part->kind == VARIABLE) {
            fill_texts(part, &cells, old, &records, count, cursors, body + buffers[0], body + buffers[2],
                       buffers[3]);
            buffers += 2;
        } else if (part->kind == FLAG)
            fill_flags(part, &cells, old, &records, count, body + buffers[0]);
        else
            fill_fixed(part, &cells, old, &records, count, body + buffers[0]);
        buffers += 2;
    }
}
