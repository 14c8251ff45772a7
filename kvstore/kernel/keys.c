/* Encodes keys (docs/format.md, Key), and groups rows by them: logformat/rows/keys.py and kvstore/request/request.py.
 * Puts entries of secondary indexes in their order: logformat/rows/entries.py.
 *
 * - The columns are valid, as in encode.c, and those of a key have no nulls.
 * - A key is written only where there is room for it.
 * - What is not as it should be makes the caller ask Python; results then mean nothing.
 * - Equal keys keep the order of their rows.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "encode.h"

enum { DIGIT = 256, FEW = 12 };

typedef struct {
    const u8 *keys;
    const i64 *ends; /* where each begins, and where the last one ends */
} keys_t;

/* A row, and the bytes of its key by which it is sorted just now. */
typedef struct {
    u64 number, row;
} entry_t;

static inline u64 key_bytes(const keys_t *keys, u64 row) { return (u64)(keys->ends[row + 1] - keys->ends[row]); }

/* Bytes of a key from one on, as a number of the same order; after its end there are zeros. */
static inline u64 number_of(const keys_t *keys, u64 row, u64 from) {
    u64 bytes = key_bytes(keys, row), word = 0;
    const u8 *key = keys->keys + keys->ends[row];
    if (from + WORD <= bytes)
        return __builtin_bswap64(word_at(key + from));
    for (u64 nth = from; nth < from + WORD; nth++)
        word = word << 8 | (nth < bytes ? key[nth] : 0);
    return word;
}

/* Order of two keys; none begins with another. */
static int compare(const keys_t *keys, u64 one, u64 other, u64 from) {
    u64 bytes = key_bytes(keys, one), others = key_bytes(keys, other), common = bytes < others ? bytes : others;
    return from < common ? memcmp(keys->keys + keys->ends[one] + from, keys->keys + keys->ends[other] + from,
                                  common - from)
                         : 0;
}

/* Bytes from one on that all entries have in common. */
static u64 common_bytes(const keys_t *keys, const entry_t *entries, u64 count, u64 from) {
    u64 common = key_bytes(keys, entries[0].row);
    for (u64 nth = 1; nth < count && common > from; nth++) {
        const u8 *first = keys->keys + keys->ends[entries[0].row], *key = keys->keys + keys->ends[entries[nth].row];
        u64 bytes = key_bytes(keys, entries[nth].row), at = from;
        common = bytes < common ? bytes : common;
        while (at + WORD <= common && word_at(first + at) == word_at(key + at))
            at += WORD;
        while (at < common && first[at] == key[at])
            at++;
        common = at;
    }
    return common > from ? common : from;
}

/* Sort entries by their numbers; equal ones keep their order. */
static void sort_by_number(entry_t *entries, entry_t *other, u64 count) {
    u64 differ = 0;
    for (u64 nth = 1; nth < count; nth++)
        differ |= entries[nth].number ^ entries[0].number;
    entry_t *from = entries, *to = other;
    for (int shift = 0; shift < 64; shift += 8) {
        if (!(differ >> shift & (DIGIT - 1)))
            continue;
        u64 places[DIGIT] = {0}, place = 0;
        for (u64 nth = 0; nth < count; nth++)
            places[from[nth].number >> shift & (DIGIT - 1)]++;
        for (u64 digit = 0; digit < DIGIT; digit++) {
            u64 some = places[digit];
            places[digit] = place;
            place += some;
        }
        for (u64 nth = 0; nth < count; nth++)
            to[places[from[nth].number >> shift & (DIGIT - 1)]++] = from[nth];
        entry_t *swapped = from;
        from = to;
        to = swapped;
    }
    if (from != entries)
        memcpy(entries, from, count * sizeof *entries);
}

/* Sort entries whose keys are the same up to a byte; equal keys keep their order.
 *
 * If all keys have one length and the numbers have all bytes in which they differ, the first of these bytes; else 0. */
static u64 sort(const keys_t *keys, entry_t *entries, entry_t *other, u64 count, u64 from) {
    if (count <= FEW) {
        for (u64 nth = 1; nth < count; nth++) {
            entry_t entry = entries[nth];
            u64 place = nth;
            for (; place && compare(keys, entries[place - 1].row, entry.row, from) > 0; place--)
                entries[place] = entries[place - 1];
            entries[place] = entry;
        }
        return 0;
    }
    from = common_bytes(keys, entries, count, from);
    if (from >= KEY_BYTES_MAX)
        return 0;
    u64 longest = 0, shortest = KEY_BYTES_MAX;
    for (u64 nth = 0; nth < count; nth++) {
        u64 bytes = key_bytes(keys, entries[nth].row);
        longest = bytes > longest ? bytes : longest;
        shortest = bytes < shortest ? bytes : shortest;
        entries[nth].number = number_of(keys, entries[nth].row, from);
    }
    sort_by_number(entries, other, count);
    if (longest <= from + WORD)
        return shortest == longest ? from : 0; /* no key begins with another, so zeros after an end tell nothing else */
    for (u64 first = 0, next; first < count; first = next) {
        for (next = first + 1; next < count && entries[next].number == entries[first].number; next++)
            ;
        if (next - first > 1)
            sort(keys, entries + first, other, next - first, from + WORD);
    }
    return 0;
}

/* Encode the key of a row; the end of what is written in *end. */
static int encode_key(const key_part_t *parts, const part_t *const *columns, const cells_t *cells, u64 count, u64 row,
                      u8 *keys, u64 capacity, u64 *end) {
    u64 at = *end;
    if (at + 1 > capacity)
        return ASK_PYTHON;
    keys[at++] = ROW;
    for (u64 nth = 0; nth < count; nth++) {
        u64 width = columns[nth]->width, cell = cells[nth].first + row;
        if (parts[nth].how == TEXT) {
            const u8 *text = text_at(&cells[nth], row);
            u64 bytes = text_bytes(&cells[nth], row);
            if (bytes > KEY_BYTES_MAX || at + 2 * bytes + 1 > capacity)
                return ASK_PYTHON;
            for (u64 byte = 0; byte < bytes; byte++) {
                if (text[byte] <= ESCAPE)
                    keys[at++] = ESCAPE;
                keys[at++] = text[byte] <= ESCAPE ? (u8)(text[byte] + 1) : text[byte];
            }
            keys[at++] = END;
            continue;
        }
        if (at + width > capacity)
            return ASK_PYTHON;
        if (parts[nth].how == BIT)
            keys[at] = (u8)bit_at(cells[nth].data, cell);
        else if (parts[nth].how == OPAQUE)
            memcpy(keys + at, cells[nth].data + cell * width, width);
        else if (width == WORD) {
            u64 word = __builtin_bswap64(word_at(cells[nth].data + cell * WORD));
            memcpy(keys + at, &word, WORD);
        } else
            for (u64 byte = 0; byte < width; byte++)
                keys[at + byte] = cells[nth].data[cell * width + width - 1 - byte];
        if (parts[nth].how == SIGNED)
            keys[at] ^= SIGN;
        at += width;
    }
    if (at - *end > KEY_BYTES_MAX)
        return ASK_PYTHON;
    *end = at;
    return DONE;
}

/* Encode the keys of rows, in at most capacity bytes; see kv_group. */
static int encode_keys(const table_t *table, const arrow_array_t *rows, const key_part_t *parts, u64 count, u8 *keys,
                       u64 capacity, i64 *ends) {
    cells_t cells[KEY_COLUMNS_MAX];
    const part_t *columns[KEY_COLUMNS_MAX];
    u64 total = (u64)rows->length, end = 0;
    if (!fit(rows, table) || count > KEY_COLUMNS_MAX)
        return ASK_PYTHON;
    for (u64 nth = 0; nth < count; nth++) {
        cells[nth] = cells_of(rows, table, parts[nth].column);
        columns[nth] = &table->parts[parts[nth].column];
    }
    ends[0] = 0;
    for (u64 row = 0; row < total; row++) {
        if (encode_key(parts, columns, cells, count, row, keys, capacity, &end))
            return ASK_PYTHON;
        ends[row + 1] = (i64)end;
    }
    return DONE;
}

/* Encode the keys of rows and group rows by them.
 *
 * parts        those of the key, in its order; there are at most KEY_COLUMNS_MAX
 * scratch      capacity bytes; ends has a number for each row and one more, entries two entries for each row
 * keys         capacity bytes, of which key_ends has the ends: the different keys, in their order
 * order, starts, lasts  see merge_engines/engine.py; a number for each row
 * found        how many different keys there are
 */
EXPORT int kv_group(const table_t *table, const arrow_array_t *rows, const key_part_t *parts, u64 count, u8 *scratch,
                    u64 capacity, i64 *ends, entry_t *entries, u8 *keys, i64 *key_ends, i64 *order, i64 *starts,
                    i64 *lasts, u64 *found) {
    u64 total = (u64)rows->length;
    if (encode_keys(table, rows, parts, count, scratch, capacity, ends))
        return ASK_PYTHON;
    for (u64 row = 0; row < total; row++)
        entries[row].row = row;
    keys_t encoded = {scratch, ends};
    u64 key = 0, from = sort(&encoded, entries, entries + total, total, 1);
    key_ends[0] = 0;
    for (u64 nth = 0; nth < total; nth++) {
        u64 row = entries[nth].row;
        order[nth] = (i64)row;
        int is_new = !nth || (from ? entries[nth - 1].number != entries[nth].number
                                   : compare(&encoded, entries[nth - 1].row, row, 1) != 0);
        if (is_new) {
            u64 bytes = key_bytes(&encoded, from ? 0 : row);
            key_ends[key + 1] = key_ends[key] + (i64)bytes;
            if (from) { /* the number has the bytes: to fetch them from the row's key would take longer */
                u64 rest = __builtin_bswap64(entries[nth].number);
                memcpy(keys + key_ends[key], scratch, from);
                memcpy(keys + key_ends[key] + from, &rest, bytes - from);
            } else
                memcpy(keys + key_ends[key], scratch + ends[row], bytes);
            starts[key++] = (i64)nth;
        }
        lasts[key - 1] = (i64)nth;
    }
    *found = key;
    return DONE;
}

/* Encode the keys of rows, group rows by them, and encode the value of each row.
 *
 * places  for each row itself, or -1 if it is a delete
 * the others  as in kv_group and kv_encode; keys of rows come to be in scratch
 */
EXPORT int kv_rows(const table_t *table, const arrow_array_t *rows, const i64 *places, const key_part_t *parts,
                   u64 count, u8 *scratch, u64 key_capacity, i64 *key_ends_of_rows, void *entries, u8 *keys,
                   i64 *key_ends, i64 *order, i64 *starts, i64 *lasts, u64 *found, u8 *values, u64 capacity, i64 *ends,
                   u64 *sums, u64 *hashes, i64 *cursors) {
    return kv_group(table, rows, parts, count, scratch, key_capacity, key_ends_of_rows, entries, keys, key_ends, order,
                    starts, lasts, found) ||
           kv_encode(table, rows, places, (u64)rows->length, scratch, key_ends_of_rows, values, capacity, ends, sums,
                     hashes, cursors);
}

/* Encode the key and the value of each of a few rows.
 *
 * target  where in it each key begins, and the last one ends; the same of the values; then key_capacity bytes of keys
 *         and capacity bytes of values, both whole words; then memory for the call (FEW_WORDS in kvstore/kernel/writes.py)
 */
EXPORT int kv_few_rows(const table_t *table, const arrow_array_t *rows, const key_part_t *parts, int key_columns,
                       int count, u8 *target, int key_capacity, int capacity) {
    i64 *key_ends = (i64 *)target, *ends = key_ends + count + 1;
    u8 *keys = (u8 *)(ends + count + 1), *values = keys + key_capacity;
    i64 *places = (i64 *)(values + capacity), *cursors = places + count, *sums = cursors + count, *hashes = sums + count;
    if (rows->length != count)
        return ASK_PYTHON;
    for (i64 row = 0; row < count; row++)
        places[row] = row;
    if (encode_keys(table, rows, parts, (u64)key_columns, keys, (u64)key_capacity, key_ends) ||
        kv_encode(table, rows, places, (u64)count, keys, key_ends, values, (u64)capacity, ends, (u64 *)sums,
                  (u64 *)hashes, cursors))
        return ASK_PYTHON;
    for (i64 nth = 0; nth <= count; nth++) {
        key_ends[nth] += keys - target;
        ends[nth] += values - target;
    }
    return DONE;
}

/* Entries of a secondary index, in their order (docs/format.md, Entries of a secondary index).
 *
 * head         of all entries
 * codes, keys  of count rows: where each begins, and where the last one ends; at least one byte of each key
 * scratch      room for all codes and keys; ends has a number for each row and one more, entries two entries for each
 * target       room for these and a head for each; target_ends has the ends of the entries
 * lengths      bytes of the code of each entry
 */
EXPORT int kv_entries(const u8 *head, u64 head_bytes, const u8 *codes, const i64 *code_ends, const u8 *keys,
                      const i64 *keys_ends, u64 count, u8 *scratch, i64 *ends, entry_t *entries, u8 *target,
                      i64 *target_ends, u16 *lengths) {
    ends[0] = target_ends[0] = 0;
    for (u64 row = 0; row < count; row++) {
        u64 code_bytes = (u64)(code_ends[row + 1] - code_ends[row]);
        u64 rest_bytes = (u64)(keys_ends[row + 1] - keys_ends[row]) - 1; /* without the first byte of a key */
        if (code_bytes > KEY_BYTES_MAX || rest_bytes > KEY_BYTES_MAX ||
            head_bytes + code_bytes + rest_bytes > KEY_BYTES_MAX)
            return ASK_PYTHON;
        memcpy(scratch + ends[row], codes + code_ends[row], code_bytes);
        memcpy(scratch + ends[row] + code_bytes, keys + keys_ends[row] + 1, rest_bytes);
        ends[row + 1] = ends[row] + (i64)(code_bytes + rest_bytes);
        entries[row].row = row;
    }
    keys_t joined = {scratch, ends};
    sort(&joined, entries, entries + count, count, 0);
    for (u64 nth = 0; nth < count; nth++) {
        u64 row = entries[nth].row, bytes = key_bytes(&joined, row);
        u8 *entry = target + target_ends[nth];
        memcpy(entry, head, head_bytes);
        memcpy(entry + head_bytes, scratch + ends[row], bytes);
        target_ends[nth + 1] = target_ends[nth] + (i64)(head_bytes + bytes);
        lengths[nth] = (u16)(code_ends[row + 1] - code_ends[row]);
    }
    return DONE;
}
