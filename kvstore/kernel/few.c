/* Makes the change records of a few rows, and the Arrow message that has them (docs/format.md, Change records, Record
 * batch): kvstore/bucket/merge/small.py and logformat/log/few_records.py in one call.
 *
 * - Keys and values are the caller's bytes, which nothing else writes. Every one is held against its size; checksums are
 *   verified, those of new values, too, and so is what a value or a key says of the sizes of its columns.
 * - No two operations have one key.
 * - Nothing is written outside the target, which has zeros where nothing is written.
 * - What is not as it should be makes the caller ask Python, which says what is wrong; the target then means nothing.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "arrow.h"
#include "sums.h"

enum { DONE, ASK_PYTHON }; /* kvstore/kernel/few.py has the same, and FEW_MAX and RESULT_BYTES */
enum { INSERT = 1, BEFORE, AFTER, DELETE };
enum { FEW_MAX = 256, RESULT_BYTES = 64, HEADER_BYTES = 96, BATCH_ALIGNMENT = 64, ALIGNMENT = 8 };

/* A table; kvstore/kernel/few.py has the same.
 *
 * key, key_columns  columns of the key, in its order
 * head, head_bytes  metadata of an Arrow message, and where in it the numbers are that differ
 * preimages         whether the rows before updates are recorded
 * inserts           whether inserts are told from updates
 */
typedef struct {
    const table_t *table;
    const key_part_t *key;
    u64 key_columns;
    const u8 *head;
    u64 head_bytes, body_bytes_at, count_at, nodes_at, buffers_at;
    u64 preimages, inserts;
} few_t;

/* One change record: a key and a value, and where in the value the next text begins. */
typedef struct {
    const u8 *key, *value;
    u64 cursor;
    u8 type;
} record_t;

/* Where the body of a message goes: it ends at end, and has room for so many bytes. */
typedef struct {
    u8 *body;
    u64 end, room;
    u8 *buffers;
} body_t;

static u64 aligned(u64 bytes, u64 alignment) { return (bytes + alignment - 1) / alignment * alignment; }

static inline void put(u8 *at, u64 number) { memcpy(at, &number, sizeof number); }

static inline int is_null(const u8 *value, const table_t *table, u64 number) {
    return value[table->bitmap + (number >> 3)] >> (number & 7) & 1;
}

/* Where the code of a key's column ends that begins at a byte; 0 if it goes beyond the key. */
static u64 code_end(const few_t *few, u64 nth, const u8 *key, u64 key_bytes, u64 at) {
    if (few->key[nth].how != TEXT) {
        u64 width = few->table->parts[few->key[nth].column].width;
        return width <= key_bytes - at ? at + width : 0;
    }
    for (; at < key_bytes && key[at] != END; at++)
        if (key[at] == ESCAPE && (++at >= key_bytes || (key[at] != ESCAPE && key[at] != ESCAPE + 1)))
            return 0;
    return at < key_bytes ? at + 1 : 0;
}

/* Whether a key has its columns and nothing after them. */
static int is_key(const few_t *few, const u8 *key, u64 key_bytes) {
    if (!key_bytes || key_bytes > KEY_BYTES_MAX || key[0] != ROW)
        return 0;
    u64 at = 1;
    for (u64 nth = 0; nth < few->key_columns; nth++)
        if (!(at = code_end(few, nth, key, key_bytes, at)))
            return 0;
    return at == key_bytes;
}

/* Whether a value is a row of the table under this key; adds its hash to the sum. */
static int is_row(const table_t *table, const weights_t *weights, u64 key_sum, const u8 *value, u64 bytes, u64 *sum) {
    if (bytes % WORD || bytes < table->fixed || (half_at(value + SCHEMA_ID) & 0xFFFF) != table->schema_id)
        return 0;
    u32 stored = half_at(value);
    u64 hash = mix(key_sum + sum_of_value(weights, value, bytes) - stored * weights->of_values[0]);
    u64 used = table->fixed;
    for (u64 column = 0; column < table->width; column++)
        if (table->parts[column].kind == VARIABLE && table->parts[column].place != OF_KEY)
            used += half_at(value + table->parts[column].place);
    *sum += hash;
    return (u32)hash == stored && used <= bytes;
}

/* Records of operations; -1 if Python has to make them. */
static int take_records(const few_t *few, const u8 *data, u64 data_bytes, const u8 *sizes, int operations,
                        record_t *records, u64 *digest, i64 *added) {
    weights_t weights = some_weights();
    u64 before = 0, after = 0;
    int count = 0;
    *added = 0;
    for (int nth = 0; nth < operations; nth++) {
        u64 bytes[3], all = 0;
        for (int part = 0; part < 3; part++)
            all += bytes[part] = half_at(sizes + (3 * nth + part) * (int)sizeof(u32));
        if (all > data_bytes || !is_key(few, data, bytes[0]))
            return -1;
        const u8 *key = data, *value = key + bytes[0], *old = value + bytes[1];
        u64 sum = sum_of_key(&weights, key, bytes[0]);
        int is = bytes[1] > 0, was = bytes[2] > 0;
        if ((is && !is_row(few->table, &weights, sum, value, bytes[1], &after)) ||
            (was && !is_row(few->table, &weights, sum, old, bytes[2], &before)))
            return -1;
        if (was && (!is || few->preimages))
            records[count++] = (record_t){key, old, few->table->fixed, is ? BEFORE : DELETE};
        if (is)
            records[count++] = (record_t){key, value, few->table->fixed, was || !few->inserts ? AFTER : INSERT};
        *added += is - was;
        data += all;
        data_bytes -= all;
    }
    *digest = after - before;
    return data_bytes ? -1 : count;
}

/* Room for one buffer of the body; NULL if there is none. */
static u8 *begin_buffer(body_t *body, u64 bytes) {
    u64 start = body->end, padded = aligned(bytes, ALIGNMENT);
    if (padded > body->room - start)
        return NULL;
    put(body->buffers, start);
    put(body->buffers + WORD, bytes);
    body->buffers += 2 * WORD;
    body->end = start + padded;
    return body->body + start;
}

/* A text of a key, decoded; its size. */
static u64 key_text(const u8 *code, u8 *text) {
    u64 bytes = 0;
    for (; *code != END; code++, bytes++) {
        u8 byte = *code == ESCAPE ? (u8)(*++code - 1) : *code;
        if (text)
            text[bytes] = byte;
    }
    return bytes;
}

/* The nth column of the key, which all records have; nonzero if there is no room. */
static int fill_key(const few_t *few, u64 nth, const record_t *records, u64 count, body_t *body) {
    const u8 *codes[2 * FEW_MAX];
    u64 how = few->key[nth].how, width = few->table->parts[few->key[nth].column].width, bytes = 0;
    for (u64 row = 0; row < count; row++) {
        u64 at = 1;
        for (u64 before = 0; before < nth; before++)
            at = code_end(few, before, records[row].key, KEY_BYTES_MAX, at); /* it was held against its size */
        codes[row] = records[row].key + at;
        bytes += how == TEXT ? key_text(codes[row], NULL) : width;
    }
    u8 *offsets = NULL;
    if (!begin_buffer(body, 0) || (how == TEXT && !(offsets = begin_buffer(body, (count + 1) * sizeof(u32)))))
        return ASK_PYTHON;
    u8 *data = begin_buffer(body, how == BIT ? (count + 7) / 8 : bytes);
    if (!data)
        return ASK_PYTHON;
    u32 end = 0;
    for (u64 row = 0; row < count; row++) {
        if (how == TEXT) {
            end += (u32)key_text(codes[row], data + end);
            memcpy(offsets + (row + 1) * sizeof end, &end, sizeof end);
        } else if (how == BIT)
            data[row >> 3] |= (u8)((codes[row][0] != 0) << (row & 7));
        else if (how == OPAQUE)
            memcpy(data + row * width, codes[row], width);
        else {
            for (u64 byte = 0; byte < width; byte++)
                data[row * width + byte] = codes[row][width - 1 - byte];
            if (how == SIGNED)
                data[row * width + width - 1] ^= SIGN;
        }
    }
    return DONE;
}

/* A column outside the key; nonzero if there is no room. The nulls among the records come to be in *nulls. */
static int fill_column(const table_t *table, const part_t *part, record_t *records, u64 count, body_t *body,
                       u64 *nulls) {
    u64 bytes = 0, bits = (count + 7) / 8, width = part->width;
    *nulls = 0;
    for (u64 row = 0; row < count; row++) {
        if (is_null(records[row].value, table, part->number))
            ++*nulls;
        bytes += part->kind == VARIABLE ? half_at(records[row].value + part->place) : width;
    }
    u8 *validity = begin_buffer(body, *nulls ? bits : 0), *offsets = NULL;
    if (!validity ||
        (part->kind == VARIABLE && !(offsets = begin_buffer(body, (count + 1) * sizeof(u32)))))
        return ASK_PYTHON;
    u8 *data = begin_buffer(body, part->kind == FLAG ? bits : bytes);
    if (!data)
        return ASK_PYTHON;
    u32 end = 0;
    for (u64 row = 0; row < count; row++) {
        const u8 *value = records[row].value, *cell = value + part->place;
        if (*nulls)
            validity[row >> 3] |= (u8)(!is_null(value, table, part->number) << (row & 7));
        if (part->kind == VARIABLE) {
            u32 size = half_at(cell);
            memcpy(data + end, value + records[row].cursor, size);
            records[row].cursor += size;
            end += size;
            memcpy(offsets + (row + 1) * sizeof end, &end, sizeof end);
        } else if (part->kind == FLAG)
            data[row >> 3] |= (u8)((cell[0] != 0) << (row & 7));
        else
            memcpy(data + row * width, cell, width);
    }
    return DONE;
}

/* Make the change records of operations, and their batch but for its header and checksum.
 *
 * data        of each operation its key, its new and its old value, one after the other
 * sizes       of these, three u32 for each operation
 * operations  at most FEW_MAX
 * target      room bytes, all of them zero: size of the batch, number of records, and what the operations add to the
 *             digest and to the number of rows, each 8 bytes; the batch begins at RESULT_BYTES
 */
EXPORT int kv_few(const few_t *few, const u8 *data, int data_bytes, const u8 *sizes, int operations, u8 *target,
                  int room) {
    record_t records[2 * FEW_MAX];
    if (operations < 0 || operations > FEW_MAX || data_bytes < 0 || room < RESULT_BYTES)
        return ASK_PYTHON;
    u64 digest;
    i64 added;
    int found = take_records(few, data, (u64)data_bytes, sizes, operations, records, &digest, &added);
    if (found < 0)
        return ASK_PYTHON;
    u64 count = (u64)found, capacity = (u64)(room - RESULT_BYTES);
    u64 size = aligned(HEADER_BYTES + count, BATCH_ALIGNMENT);
    if (size + few->head_bytes > capacity)
        return ASK_PYTHON;
    u8 *batch = target + RESULT_BYTES, *head = batch + size;
    if (count) {
        size += few->head_bytes;
        body_t body = {batch + size, 0, capacity - size, head + few->buffers_at};
        u8 *node = head + few->nodes_at;
        memcpy(head, few->head, few->head_bytes);
        for (u64 column = 0; column < few->table->width; column++, node += 2 * WORD) {
            const part_t *part = &few->table->parts[column];
            u64 nulls = 0, nth = 0;
            while (part->place == OF_KEY && few->key[nth].column != column)
                nth++;
            if (part->place == OF_KEY ? fill_key(few, nth, records, count, &body)
                                      : fill_column(few->table, part, records, count, &body, &nulls))
                return ASK_PYTHON;
            put(node, count);
            put(node + WORD, nulls);
        }
        put(head + few->body_bytes_at, body.end);
        put(head + few->count_at, count);
        size = aligned(size + body.end, BATCH_ALIGNMENT);
        if (size > capacity)
            return ASK_PYTHON;
    }
    for (u64 nth = 0; nth < count; nth++)
        batch[HEADER_BYTES + nth] = records[nth].type;
    put(target, size);
    put(target + WORD, count);
    put(target + 2 * WORD, digest);
    memcpy(target + 3 * WORD, &added, sizeof added);
    return DONE;
}
