/* Encodes rows of Arrow columns as values of an index (docs/format.md, Row, Record, Row checksum).
 *
 * - The columns are valid, as Arrow defines it: their buffers hold every row, offsets rise, texts are within the data.
 *   Which rows are taken is held against their number.
 * - Nothing outside the results is written: sizes are summed up before anything is, and a text that is longer by then,
 *   since its owner changes it meanwhile, is cut.
 * - What is not as it should be makes the caller ask Python; results then mean nothing.
 * - A row that is not taken has no bytes.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "encode.h"

#define ENCODE_EACH(type)                                                                                              \
    for (u64 nth = 0; nth < count; nth++)                                                                              \
        if (places[nth] >= 0 && has(cells, (u64)places[nth]))                                                          \
            memcpy(values + ends[nth] + part->place, cells->data + (cells->first + (u64)places[nth]) * sizeof(type),   \
                   sizeof(type));

static void encode_fixed(const part_t *part, const cells_t *cells, const i64 *places, u64 count, const i64 *ends,
                         u8 *values) {
    if (part->width == 8) {
        ENCODE_EACH(u64)
    } else if (part->width == 4) {
        ENCODE_EACH(u32)
    } else if (part->width == 2) {
        ENCODE_EACH(uint16_t)
    } else if (part->width == 1) {
        ENCODE_EACH(u8)
    } else {
        for (u64 nth = 0; nth < count; nth++)
            if (places[nth] >= 0 && has(cells, (u64)places[nth]))
                memcpy(values + ends[nth] + part->place, cells->data + (cells->first + (u64)places[nth]) * part->width,
                       part->width);
    }
}

static void encode_flags(const part_t *part, const cells_t *cells, const i64 *places, u64 count, const i64 *ends,
                         u8 *values) {
    for (u64 nth = 0; nth < count; nth++)
        if (places[nth] >= 0 && has(cells, (u64)places[nth]))
            values[(u64)ends[nth] + part->place] = (u8)bit_at(cells->data, cells->first + (u64)places[nth]);
}

static void encode_texts(const part_t *part, const cells_t *cells, const i64 *places, u64 count, const i64 *ends,
                         i64 *cursors, u8 *values) {
    for (u64 nth = 0; nth < count; nth++) {
        if (places[nth] < 0 || !has(cells, (u64)places[nth]))
            continue;
        u32 size = (u32)at_most(text_bytes(cells, (u64)places[nth]), (u64)(ends[nth + 1] - cursors[nth]));
        if (!size)
            continue;
        memcpy(values + ends[nth] + part->place, &size, sizeof size);
        memcpy(values + cursors[nth], text_at(cells, (u64)places[nth]), size);
        cursors[nth] += size;
    }
}

static void mark_nulls(const table_t *table, const part_t *part, const cells_t *cells, const i64 *places, u64 count,
                       const i64 *ends, u8 *values) {
    u64 at = table->bitmap + (part->number >> 3);
    for (u64 nth = 0; nth < count; nth++)
        if (places[nth] >= 0 && !has(cells, (u64)places[nth]))
            values[(u64)ends[nth] + at] |= (u8)(1u << (part->number & 7));
}

/* Encode the values of keys.
 *
 * places      for each of count keys its row, or -1 if it gets none
 * keys, key_ends  as in find.c
 * values      of capacity bytes; ends has count + 1 positions in it
 * sums        of the keys
 * hashes      of the values; 0 where there is none
 * cursors     count numbers that the function may use
 */
EXPORT int kv_encode(const table_t *table, const arrow_array_t *rows, const i64 *places, u64 count, const u8 *keys,
                     const i64 *key_ends, u8 *values, u64 capacity, i64 *ends, u64 *sums, u64 *hashes, i64 *cursors) {
    if (!fit(rows, table))
        return ASK_PYTHON;
    for (u64 nth = 0; nth < count; nth++) {
        if (places[nth] >= rows->length || (u64)(key_ends[nth + 1] - key_ends[nth]) > WEIGHTS * WORD)
            return ASK_PYTHON;
        cursors[nth] = places[nth] < 0 ? 0 : (i64)table->fixed;
    }
    for (u64 column = 0; column < table->width; column++) {
        if (table->parts[column].kind != VARIABLE || table->parts[column].place == OF_KEY)
            continue;
        cells_t cells = cells_of(rows, table, column);
        for (u64 nth = 0; nth < count; nth++)
            if (places[nth] >= 0 && has(&cells, (u64)places[nth]))
                cursors[nth] += (i64)text_bytes(&cells, (u64)places[nth]);
    }
    u64 end = 0;
    for (u64 nth = 0; nth < count; nth++) {
        ends[nth] = (i64)end;
        end += ((u64)cursors[nth] + WORD - 1) / WORD * WORD;
        if (end > capacity || (places[nth] >= 0 && cursors[nth] < (i64)table->fixed))
            return ASK_PYTHON;
        cursors[nth] = ends[nth] + (i64)table->fixed;
    }
    ends[count] = (i64)end;
    memset(values, 0, end);
    for (u64 column = 0; column < table->width; column++) {
        const part_t *part = &table->parts[column];
        if (part->place == OF_KEY)
            continue;
        cells_t cells = cells_of(rows, table, column);
        if (part->kind == VARIABLE)
            encode_texts(part, &cells, places, count, ends, cursors, values);
        else if (part->kind == FLAG)
            encode_flags(part, &cells, places, count, ends, values);
        else
            encode_fixed(part, &cells, places, count, ends, values);
        if (cells.validity)
            mark_nulls(table, part, &cells, places, count, ends, values);
    }
    weights_t weights = some_weights();
    for (u64 nth = 0; nth < count; nth++) {
        u8 *value = values + ends[nth];
        sums[nth] = sum_of_key(&weights, keys + key_ends[nth], (u64)(key_ends[nth + 1] - key_ends[nth]));
        hashes[nth] = 0;
        if (places[nth] < 0)
            continue;
        uint16_t schema_id = (uint16_t)table->schema_id;
        memcpy(value + SCHEMA_ID, &schema_id, sizeof schema_id);
        hashes[nth] = mix(sums[nth] + sum_of_value(&weights, value, (u64)(ends[nth + 1] - ends[nth])));
        u32 checksum = (u32)hashes[nth];
        memcpy(value, &checksum, sizeof checksum);
    }
    return DONE;
}
