/* Makes the change records of a batch, and the Arrow message that has them (docs/format.md, Change records, Record
 * batch): what kvstore/bucket/write_path.py does for the engines last_row and first_row, in one call.
 *
 * - Keys and values are the caller's bytes, which nothing else writes. Every one is held against its size; checksums are
 *   verified, those of new values, too, and so is what a value or a key says of the sizes of its columns.
 * - Operations take effect one after the other, also on one key.
 * - Nothing is written outside the target, which has zeros where nothing is written, and outside the scratch memory.
 * - What is not as it should be makes the caller ask Python, which says what is wrong; the target then means nothing.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "arrow.h"
#include "crc.h"

enum { DONE, ASK_PYTHON }; /* kvstore/kernel/changes.py has the same, and RESULT_BYTES */
enum { INSERT = 1, BEFORE, AFTER, DELETE };
enum { RESULT_BYTES = 64, HEADER_BYTES = 96, BATCH_ALIGNMENT = 64, ALIGNMENT = 8 };
enum { BLOCK = 256 }; /* records whose columns are filled together: their rows stay in the processor's caches */
enum { LENGTH = 8, CRC = 16, LAST_DELTA = 20, COUNT = 48, RECORDS_AT = 80 }; /* fields of a header, each of 4 bytes */
enum { OVERHEAD = 12 }; /* bytes that the length leaves out */
#define OPERATIONS_MAX ((u64)1 << 31)
#define TEXT_BYTES_MAX INT32_MAX

/* A table; kvstore/kernel/changes.py has the same.
 *
 * key, key_columns  columns of the key, in its order
 * head, head_bytes  metadata of an Arrow message, and where in it the numbers are that differ
 * preimages         whether the rows before updates are recorded
 * inserts           whether inserts are told from updates
 * keeps_first       whether an upsert of a key that is there does nothing
 */
typedef struct {
    const table_t *table;
    const key_part_t *key;
    u64 key_columns;
    const u8 *head;
    u64 head_bytes, body_bytes_at, count_at, nodes_at, buffers_at;
    u64 preimages, inserts, keeps_first;
} plan_t;

/* The operations of a batch, and the rows that are stored; kvstore/kernel/changes.py has the same.
 *
 * operations, keys, skips  how many; whether updates that change nothing are skipped
 * key_bytes, value_bytes, old_bytes  sizes of the bytes at hand
 * key_flat, key_ends   the different keys, of each where it begins, and where the last one ends
 * flat, ends           the new values of operations, in the same way: an empty one for a delete
 * old, old_sizes       what is stored, one after the other; of each key the size, 0 if nothing is
 * order, starts, lasts operations by key; those of the nth key are from starts[nth] to lasts[nth], in order
 * final                for each key the operation that leaves its row, or -1 if it stays as it is: a result
 * scratch, scratch_bytes  memory at an address that is a multiple of 8
 */
typedef struct {
    u64 operations, keys, skips, key_bytes, value_bytes, old_bytes;
    const u8 *key_flat;
    const i64 *key_ends;
    const u8 *flat;
    const i64 *ends;
    const u8 *old;
    const i64 *old_sizes, *order, *starts, *lasts;
    i64 *final;
    u8 *scratch;
    u64 scratch_bytes;
} batch_t;

/* What an operation does: to a key, whose row before it and after it is NULL if there is none. */
typedef struct {
    const u8 *key, *before, *after;
    u64 is_kept;
} operation_t;

/* One change record: a key and a value, and where in the value the next text begins. */
typedef struct {
    const u8 *key, *value;
    u64 cursor;
    u8 type;
} record_t;

/* A column of the records.
 *
 * nth    which column of the key it is, if it is one
 * nulls, bytes  how many, and of its data
 * end    bytes of the texts that are filled in
 */
typedef struct {
    u64 nth, nulls, bytes;
    u8 *validity, *offsets, *data;
    u32 end;
} column_t;

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

/* The nth of some strings; nonzero if it is not within their bytes. */
static inline int string_at(const u8 *flat, const i64 *ends, u64 bytes, u64 nth, const u8 **string, u64 *size) {
    u64 start = (u64)ends[nth], end = (u64)ends[nth + 1];
    if (start > end || end > bytes)
        return ASK_PYTHON;
    *string = flat + start;
    *size = end - start;
    return DONE;
}

/* Where the code of a key's column ends that begins at a byte; 0 if it goes beyond the key. */
static u64 code_end(const plan_t *plan, u64 nth, const u8 *key, u64 key_bytes, u64 at) {
    if (plan->key[nth].how != TEXT) {
        u64 width = plan->table->parts[plan->key[nth].column].width;
        return width <= key_bytes - at ? at + width : 0;
    }
    for (; at < key_bytes && key[at] != END; at++)
        if (key[at] == ESCAPE && (++at >= key_bytes || (key[at] != ESCAPE && key[at] != ESCAPE + 1)))
            return 0;
    return at < key_bytes ? at + 1 : 0;
}

/* Whether a key has its columns and nothing after them. */
static int is_key(const plan_t *plan, const u8 *key, u64 key_bytes) {
    if (!key_bytes || key_bytes > KEY_BYTES_MAX || key[0] != ROW)
        return 0;
    u64 at = 1;
    for (u64 nth = 0; nth < plan->key_columns; nth++)
        if (!(at = code_end(plan, nth, key, key_bytes, at)))
            return 0;
    return at == key_bytes;
}

/* Whether a value is a row of the table under this key, and its hash. */
static int is_row(const table_t *table, const weights_t *weights, u64 key_sum, const u8 *value, u64 bytes, u64 *hash) {
    if (bytes % WORD || bytes < table->fixed || (half_at(value + SCHEMA_ID) & 0xFFFF) != table->schema_id)
        return 0;
    u32 stored = half_at(value);
    *hash = mix(key_sum + sum_of_value(weights, value, bytes) - stored * weights->of_values[0]);
    u64 used = table->fixed;
    for (u64 column = 0; column < table->width; column++)
        if (table->parts[column].kind == VARIABLE && table->parts[column].place != OF_KEY)
            used += half_at(value + table->parts[column].place);
    return (u32)*hash == stored && used <= bytes;
}

/* What the operations of a key do, given the row that is stored; nonzero if Python has to say it. */
static int take_operations(const plan_t *plan, const weights_t *weights, const batch_t *batch, u64 nth, const u8 *old,
                           u64 old_bytes, operation_t *operations, u64 *taken, u64 *digest, i64 *added) {
    const u8 *key, *row = old_bytes ? old : NULL, *value;
    u64 key_bytes, row_bytes = old_bytes, row_hash = 0, bytes;
    if (string_at(batch->key_flat, batch->key_ends, batch->key_bytes, nth, &key, &key_bytes) ||
        !is_key(plan, key, key_bytes))
        return ASK_PYTHON;
    u64 sum = sum_of_key(weights, key, key_bytes);
    if (row && !is_row(plan->table, weights, sum, row, row_bytes, &row_hash))
        return ASK_PYTHON;
    batch->final[nth] = -1;
    if (batch->starts[nth] < 0 || batch->lasts[nth] >= (i64)batch->operations)
        return ASK_PYTHON;
    for (i64 at = batch->starts[nth]; at <= batch->lasts[nth]; at++) {
        u64 place = (u64)batch->order[at], hash = 0;
        if (place >= batch->operations || operations[place].key ||
            string_at(batch->flat, batch->ends, batch->value_bytes, place, &value, &bytes) ||
            (bytes && !is_row(plan->table, weights, sum, value, bytes, &hash)))
            return ASK_PYTHON;
        ++*taken;
        operation_t *operation = &operations[place];
        int is_same = row && batch->skips && bytes == row_bytes && !memcmp(row, value, bytes);
        *operation = (operation_t){key, row, bytes ? value : NULL, row ? !plan->keeps_first && !is_same : bytes > 0};
        if (!operation->is_kept)
            continue;
        *added += (bytes > 0) - (row != NULL);
        *digest += hash - row_hash;
        row = operation->after;
        row_bytes = bytes;
        row_hash = hash;
        batch->final[nth] = (i64)place;
    }
    return DONE;
}

/* Records of operations; -1 if Python has to make them. */
static i64 take_records(const plan_t *plan, const batch_t *batch, operation_t *operations, record_t *records,
                        u64 *digest, i64 *added) {
    weights_t weights = some_weights();
    u64 taken = 0, left = batch->old_bytes;
    const u8 *old = batch->old;
    i64 count = 0;
    *digest = 0;
    *added = 0;
    memset(operations, 0, batch->operations * sizeof *operations);
    for (u64 nth = 0; nth < batch->keys; nth++) {
        u64 bytes = (u64)batch->old_sizes[nth];
        if (bytes > left ||
            take_operations(plan, &weights, batch, nth, old, bytes, operations, &taken, digest, added))
            return -1;
        old += bytes;
        left -= bytes;
    }
    if (left || taken != batch->operations)
        return -1;
    for (u64 nth = 0; nth < batch->operations; nth++) {
        const operation_t *each = &operations[nth];
        if (!each->is_kept)
            continue;
        if (each->before && (!each->after || plan->preimages))
            records[count++] = (record_t){each->key, each->before, plan->table->fixed, each->after ? BEFORE : DELETE};
        if (each->after)
            records[count++] = (record_t){each->key, each->after, plan->table->fixed,
                                          each->before || !plan->inserts ? AFTER : INSERT};
    }
    return count;
}

/* Where the code of the nth column of a key begins. */
static inline const u8 *code_of(const plan_t *plan, u64 nth, const u8 *key) {
    u64 at = 1;
    for (u64 before = 0; before < nth; before++)
        at = code_end(plan, before, key, KEY_BYTES_MAX, at); /* it was held against its size */
    return key + at;
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

/* Nulls of a column in some records, and bytes of its texts. */
static void measure(const plan_t *plan, const part_t *part, column_t *column, const record_t *records, u64 count) {
    if (part->place == OF_KEY) {
        if (part->kind == VARIABLE)
            for (u64 row = 0; row < count; row++)
                column->bytes += key_text(code_of(plan, column->nth, records[row].key), NULL);
        return;
    }
    for (u64 row = 0; row < count; row++)
        if (is_null(records[row].value, plan->table, part->number))
            ++column->nulls;
    if (part->kind == VARIABLE)
        for (u64 row = 0; row < count; row++)
            column->bytes += half_at(records[row].value + part->place);
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

/* Room for a column of so many records; nonzero if there is none. */
static int begin_column(const part_t *part, column_t *column, u64 count, body_t *body) {
    u64 bits = (count + 7) / 8;
    int is_text = part->kind == VARIABLE;
    if (column->bytes > TEXT_BYTES_MAX)
        return ASK_PYTHON;
    column->validity = begin_buffer(body, column->nulls ? bits : 0);
    column->offsets = is_text && column->validity ? begin_buffer(body, (count + 1) * sizeof(u32)) : NULL;
    if (!column->validity || (is_text && !column->offsets))
        return ASK_PYTHON;
    column->data = begin_buffer(body, is_text ? column->bytes : part->kind == FLAG ? bits : count * part->width);
    return column->data ? DONE : ASK_PYTHON;
}

/* A column of the key, in records from one row on. */
static void fill_key(const plan_t *plan, const part_t *part, column_t *column, const record_t *records, u64 first,
                     u64 last) {
    u64 how = plan->key[column->nth].how, width = part->width;
    for (u64 row = first; row < last; row++) {
        const u8 *code = code_of(plan, column->nth, records[row].key);
        if (how == TEXT) {
            column->end += (u32)key_text(code, column->data + column->end);
            memcpy(column->offsets + (row + 1) * sizeof(u32), &column->end, sizeof(u32));
        } else if (how == BIT)
            column->data[row >> 3] |= (u8)((code[0] != 0) << (row & 7));
        else if (how == OPAQUE)
            memcpy(column->data + row * width, code, width);
        else if (width == WORD) {
            u64 word = __builtin_bswap64(word_at(code));
            memcpy(column->data + row * WORD, &word, WORD);
        } else
            for (u64 byte = 0; byte < width; byte++)
                column->data[row * width + byte] = code[width - 1 - byte];
        if (how == SIGNED)
            column->data[row * width + width - 1] ^= SIGN;
    }
}

#define FILL_EACH(bytes)                                                                                               \
    for (u64 row = first; row < last; row++)                                                                           \
        memcpy(column->data + row * (bytes), records[row].value + part->place, bytes);

/* A column outside the key, in records from one row on. */
static void fill_column(const table_t *table, const part_t *part, column_t *column, record_t *records, u64 first,
                        u64 last) {
    if (column->nulls)
        for (u64 row = first; row < last; row++)
            column->validity[row >> 3] |= (u8)(!is_null(records[row].value, table, part->number) << (row & 7));
    if (part->kind == VARIABLE)
        for (u64 row = first; row < last; row++) {
            record_t *record = &records[row];
            u32 size = half_at(record->value + part->place);
            memcpy(column->data + column->end, record->value + record->cursor, size);
            record->cursor += size;
            column->end += size;
            memcpy(column->offsets + (row + 1) * sizeof(u32), &column->end, sizeof(u32));
        }
    else if (part->kind == FLAG)
        for (u64 row = first; row < last; row++)
            column->data[row >> 3] |= (u8)((records[row].value[part->place] != 0) << (row & 7));
    else if (part->width == 8) {
        FILL_EACH(8)
    } else if (part->width == 4) {
        FILL_EACH(4)
    } else {
        FILL_EACH(part->width)
    }
}

/* The message of records, of which there is at least one; its size, 0 if there is no room. */
static u64 fill_message(const plan_t *plan, column_t *columns, record_t *records, u64 count, u8 *message, u64 room) {
    const table_t *table = plan->table;
    if (plan->head_bytes > room)
        return 0;
    memcpy(message, plan->head, plan->head_bytes);
    memset(columns, 0, table->width * sizeof *columns);
    for (u64 column = 0; column < table->width; column++)
        while (table->parts[column].place == OF_KEY && plan->key[columns[column].nth].column != column)
            columns[column].nth++;
    for (u64 first = 0; first < count; first += BLOCK)
        for (u64 column = 0; column < table->width; column++)
            measure(plan, &table->parts[column], &columns[column], records + first,
                    count - first < BLOCK ? count - first : BLOCK);
    body_t body = {message + plan->head_bytes, 0, room - plan->head_bytes, message + plan->buffers_at};
    u8 *node = message + plan->nodes_at;
    for (u64 column = 0; column < table->width; column++, node += 2 * WORD) {
        if (begin_column(&table->parts[column], &columns[column], count, &body))
            return 0;
        put(node, count);
        put(node + WORD, columns[column].nulls);
    }
    put(message + plan->body_bytes_at, body.end);
    put(message + plan->count_at, count);
    for (u64 first = 0; first < count; first += BLOCK) {
        u64 last = count - first < BLOCK ? count : first + BLOCK;
        for (u64 column = 0; column < table->width; column++) {
            const part_t *part = &table->parts[column];
            if (part->place == OF_KEY)
                fill_key(plan, part, &columns[column], records, first, last);
            else
                fill_column(table, part, &columns[column], records, first, last);
        }
    }
    return plan->head_bytes + body.end;
}

/* Make the change records of a batch, and the record batch that has them, but for its header and checksum.
 *
 * target  room bytes, all of them zero: size of the record batch, number of records, and what the operations add to the
 *         digest and to the number of rows, each 8 bytes; the record batch begins at RESULT_BYTES
 */
EXPORT int kv_changes(const plan_t *plan, const batch_t *batch, u8 *target, u64 room) {
    u64 of_operations = batch->operations * sizeof(operation_t), of_records = 2 * batch->operations * sizeof(record_t);
    u64 of_columns = plan->table->width * sizeof(column_t), digest;
    if (batch->operations >= OPERATIONS_MAX || of_operations + of_records + of_columns > batch->scratch_bytes)
        return ASK_PYTHON;
    operation_t *operations = (operation_t *)batch->scratch;
    record_t *records = (record_t *)(batch->scratch + of_operations);
    column_t *columns = (column_t *)(batch->scratch + of_operations + of_records);
    i64 added, found = take_records(plan, batch, operations, records, &digest, &added);
    if (found < 0 || room < RESULT_BYTES)
        return ASK_PYTHON;
    u64 count = (u64)found, capacity = room - RESULT_BYTES, size = aligned(HEADER_BYTES + count, BATCH_ALIGNMENT);
    u8 *made = target + RESULT_BYTES;
    if (size > capacity)
        return ASK_PYTHON;
    if (count) {
        u64 message = fill_message(plan, columns, records, count, made + size, capacity - size);
        size = aligned(size + message, BATCH_ALIGNMENT);
        if (!message || size > capacity)
            return ASK_PYTHON;
    }
    for (u64 nth = 0; nth < count; nth++)
        made[HEADER_BYTES + nth] = records[nth].type;
    put(target, size);
    put(target + WORD, count);
    put(target + 2 * WORD, digest);
    memcpy(target + 3 * WORD, &added, sizeof added);
    return DONE;
}

static inline void put_half(u8 *at, u64 number) {
    u32 half = (u32)number;
    memcpy(at, &half, sizeof half);
}

/* Where strings of these sizes begin and end; returns the bytes of all of them. */
static u64 laid_out(const u8 *sizes, u64 count, i64 *ends) {
    u64 bytes = 0;
    for (u64 nth = 0; nth < count; nth++) {
        ends[nth] = (i64)bytes;
        bytes += word_at(sizes + nth * WORD);
    }
    ends[count] = (i64)bytes;
    return bytes;
}

/* The same for a few operations, each of another key, with all of the record batch.
 *
 * memory  a header, of which are filled in the sizes, the counts and the checksum; the sizes of the keys, of the new
 *         values and of what is stored, each 8 bytes, 0 for no row; then these strings, in the same order
 * target  see above; after these bytes comes final, and memory for the call (FEW_WORDS in kvstore/kernel/changes.py)
 *
 * Sizes are what ctypes passes at half the cost of others.
 */
EXPORT int kv_few_changes(const plan_t *plan, const u8 *memory, int operations, int skips, u8 *target, int room) {
    u64 count = (u64)operations;
    const u8 *sizes = memory + HEADER_BYTES, *strings = sizes + 3 * count * WORD, *old_sizes = sizes + 2 * count * WORD;
    i64 *final = (i64 *)(target + room), *each = final + count, *old = each + count, *key_ends = old + count;
    i64 *ends = key_ends + count + 1, *scratch = ends + count + 1;
    u64 key_bytes = laid_out(sizes, count, key_ends), value_bytes = laid_out(sizes + count * WORD, count, ends);
    u64 old_bytes = 0;
    for (u64 nth = 0; nth < count; nth++) {
        each[nth] = (i64)nth;
        old[nth] = (i64)word_at(old_sizes + nth * WORD);
        old_bytes += (u64)old[nth];
    }
    const u8 *values = strings + key_bytes;
    batch_t batch = {
        .operations = count, .keys = count, .skips = (u64)skips,
        .key_bytes = key_bytes, .value_bytes = value_bytes, .old_bytes = old_bytes,
        .key_flat = strings, .key_ends = key_ends, .flat = values, .ends = ends,
        .old = values + value_bytes, .old_sizes = old,
        .order = each, .starts = each, .lasts = each, .final = final, .scratch = (u8 *)scratch,
        .scratch_bytes = count * (sizeof(operation_t) + 2 * sizeof(record_t)) + plan->table->width * sizeof(column_t),
    };
    int status = kv_changes(plan, &batch, target, (u64)room);
    if (status)
        return status;
    u64 size = word_at(target), records = word_at(target + WORD);
    u8 *made = target + RESULT_BYTES;
    memcpy(made, memory, HEADER_BYTES);
    put_half(made + LENGTH, size - OVERHEAD);
    put_half(made + LAST_DELTA, records ? records - 1 : 0);
    put_half(made + COUNT, records);
    put_half(made + RECORDS_AT, records ? aligned(HEADER_BYTES + records, BATCH_ALIGNMENT) : 0);
    put_half(made + CRC, crc_after(crc_after(0, made, CRC), made + LAST_DELTA, size - LAST_DELTA));
    return DONE;
}
