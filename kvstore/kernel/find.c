/* Finds keys in the committed pages of an index (docs/format.md, Index and "Scan of an index").
 *
 * - Nothing outside the map is read, whatever its bytes are: every position comes from a page and is held against the
 *   page before it is used, every page number against the map.
 * - Bytes of the map may change while they are read, if another process ignores this reader. So a field is read once,
 *   and what was checked is what is used.
 * - The file is not cut while it is mapped: as with LMDB's own map, that ends the process.
 * - The caller holds a read transaction, and asks afterwards whether it still does before it believes an answer.
 * - Damage that can be seen on the way to a key is reported, as LMDB or kvstore/index/leaves.py would; rows have their
 *   own checksums.
 * - No function keeps anything, allocates, or calls Python.
 */

#include "common.h"

enum { DONE, OTHER_COMMIT, BEYOND, DAMAGED }; /* kvstore/kernel/pages.py has the same */

enum { BRANCH = 1, LEAF = 2, OVERFLOW = 4, META = 8, BIG = 1, DEPTH_MAX = 32 };
enum { HEAD_BYTES = 16, NODE_BYTES = 8, NUMBER_BYTES = 8 };
enum { PAGE_BYTES_MIN = 256, PAGE_BYTES_MAX = 1 << 15 };
enum { META_MAGIC = 16, META_VERSION = 20, META_FREE = 40, META_MAIN = 88, META_TRANSACTION = 144, META_END = 152 };
enum { TREE_DEPTH = 6, TREE_ROOT = 40 };
#define MAGIC 0xBEEFC0DEu
#define VERSION 1u
#define NOWHERE UINT64_MAX

/* Keys that go down the tree together: while the memory of one is fetched, the others are compared. */
#define LANES 24

/* After so many keys in one leaf, the next ones go down alone: one for each leaf is enough. */
#define CLOSE 4

typedef struct {
    const u8 *map;
    u64 pages;
    u32 page_bytes;
    u64 bad; /* the page at which a search ended */
} pages_t;

typedef struct {
    const u8 *key;
    u64 number; /* of the page */
    u64 value;
    u32 key_bytes, upper, entries, low, high, node, value_bytes;
} lane_t;

/* Keys that are sought: where each begins, and where the last one ends. */
typedef struct {
    const u8 *keys;
    const i64 *ends;
} sought_t;

/* Fields at even places, and at multiples of 8. */
static inline u16 read_16(const u8 *at) { return *(const volatile u16 *)at; }

static inline u64 read_64(const u8 *at) { return *(const volatile u64 *)at; }

/* A number that may be anywhere. */
static inline u64 read_number(const u8 *at) {
    u64 word = 0;
    for (int nth = 7; nth >= 0; nth--)
        word = word << 8 | ((const volatile u8 *)at)[nth];
    return word;
}

static inline u32 read_32(const u8 *at) { return (u32)read_16(at) | (u32)read_16(at + 2) << 16; }

static int at_fault(pages_t *pages, u64 number, int status) {
    pages->bad = number;
    return status;
}

static inline const u8 *page_at(const pages_t *pages, u64 number) { return pages->map + number * pages->page_bytes; }

/* Begin the search of a page for the lane's key. */
static inline int enter(pages_t *pages, lane_t *lane, int kind) {
    if (lane->number >= pages->pages)
        return at_fault(pages, lane->number, BEYOND);
    const u8 *page = page_at(pages, lane->number);
    u32 lower = read_16(page + 12), upper = read_16(page + 14);
    if (read_64(page) != lane->number || read_16(page + 10) != kind || lower & 1 || lower <= HEAD_BYTES ||
        upper < lower || upper > pages->page_bytes)
        return at_fault(pages, lane->number, DAMAGED);
    lane->upper = upper;
    lane->low = kind == BRANCH; /* LMDB ignores the first key of a branch page */
    lane->high = lane->entries = (lower - HEAD_BYTES) >> 1;
    return DONE;
}

/* Position in its page of a node's head and key; 0 if they are not within the nodes of the page. */
static inline u32 node_of(const pages_t *pages, const lane_t *lane, u32 nth) {
    u32 node = read_16(page_at(pages, lane->number) + HEAD_BYTES + 2 * nth);
    return node & 1 || node < lane->upper || node > pages->page_bytes - NODE_BYTES ? 0 : node;
}

/* Bytes of a node's key; -1 if it is not within the page. */
static inline int32_t key_bytes_of(const pages_t *pages, const u8 *page, u32 node) {
    u32 key_bytes = read_16(page + node + 6);
    return node + NODE_BYTES + key_bytes > pages->page_bytes ? -1 : (int32_t)key_bytes;
}

/* One probe of each lane of a page, until each knows its place. */
static int search(pages_t *pages, lane_t *lanes, u32 count, int kind) {
    for (int more = 1; more;) {
        more = 0;
        for (u32 nth = 0; nth < count; nth++) {
            lane_t *lane = &lanes[nth];
            if (lane->low >= lane->high)
                continue;
            lane->node = node_of(pages, lane, (lane->low + lane->high) >> 1);
            if (!lane->node)
                return at_fault(pages, lane->number, DAMAGED);
            __builtin_prefetch(page_at(pages, lane->number) + lane->node);
        }
        for (u32 nth = 0; nth < count; nth++) {
            lane_t *lane = &lanes[nth];
            if (lane->low >= lane->high)
                continue;
            const u8 *page = page_at(pages, lane->number);
            int32_t key_bytes = key_bytes_of(pages, page, lane->node);
            if (key_bytes < 0)
                return at_fault(pages, lane->number, DAMAGED);
            int order = compare_bytes(page + lane->node + NODE_BYTES, (u32)key_bytes, lane->key, lane->key_bytes);
            u32 middle = (lane->low + lane->high) >> 1;
            int after = order < (kind == BRANCH);
            lane->low = after ? middle + 1 : lane->low;
            lane->high = after ? lane->high : middle;
            more |= lane->low < lane->high;
        }
    }
    return DONE;
}

/* From a branch to the page below in which the key must be. */
static inline int go_down(pages_t *pages, lane_t *lane) {
    const u8 *page = page_at(pages, lane->number);
    u32 node = node_of(pages, lane, lane->low - 1);
    if (!node || key_bytes_of(pages, page, node) < 0)
        return at_fault(pages, lane->number, DAMAGED);
    lane->number = (u64)read_32(page + node) | (u64)read_16(page + node + 4) << 32;
    if (lane->number >= pages->pages)
        return at_fault(pages, lane->number, BEYOND);
    const u8 *below = page_at(pages, lane->number);
    __builtin_prefetch(below);
    __builtin_prefetch(below + 64);
    return DONE;
}

/* The value of the lane's key in its leaf; its bytes are 0 if the key is not there. */
static inline int take_value(pages_t *pages, lane_t *lane) {
    lane->value = lane->value_bytes = 0;
    if (lane->low >= lane->entries)
        return DONE;
    const u8 *page = page_at(pages, lane->number);
    u32 node = node_of(pages, lane, lane->low);
    int32_t key_bytes = node ? key_bytes_of(pages, page, node) : -1;
    if (key_bytes < 0)
        return at_fault(pages, lane->number, DAMAGED);
    if (compare_bytes(page + node + NODE_BYTES, (u32)key_bytes, lane->key, lane->key_bytes))
        return DONE;
    u32 value_bytes = read_32(page + node), flags = read_16(page + node + 4);
    u64 value = node + NODE_BYTES + (u32)key_bytes;
    /* No stored value is empty. */
    if (!value_bytes || flags & ~(u32)BIG || value + (flags ? NUMBER_BYTES : value_bytes) > pages->page_bytes)
        return at_fault(pages, lane->number, DAMAGED);
    lane->value = lane->number * pages->page_bytes + value;
    lane->value_bytes = value_bytes;
    if (!flags)
        return DONE;
    u64 first = read_number(page + value), needed = (HEAD_BYTES + (u64)value_bytes + pages->page_bytes - 1) / pages->page_bytes;
    if (first >= pages->pages || needed > pages->pages - first)
        return at_fault(pages, first, BEYOND);
    const u8 *head = page_at(pages, first);
    /* A value that is put twice in a transaction, shorter the second time, keeps its pages. */
    if (read_64(head) != first || read_16(head + 10) != OVERFLOW || read_32(head + 12) < needed)
        return at_fault(pages, first, DAMAGED);
    lane->value = first * pages->page_bytes + HEAD_BYTES;
    return DONE;
}

/* Fields of a meta page; DAMAGED if it is none. */
static int read_meta(const pages_t *pages, u64 number, u64 *transaction, u64 *root, u32 *depth) {
    const u8 *page = page_at(pages, number);
    if (read_64(page) != number || read_16(page + 10) != META || read_32(page + META_MAGIC) != MAGIC ||
        read_32(page + META_VERSION) != VERSION || read_32(page + META_FREE) != pages->page_bytes ||
        read_32(page + META_MAIN) != 0)
        return DAMAGED;
    *transaction = read_64(page + META_TRANSACTION);
    *root = read_64(page + META_MAIN + TREE_ROOT);
    *depth = read_16(page + META_MAIN + TREE_DEPTH);
    return DONE;
}

/* The tree as of a transaction; see kvstore/disk/pages.py, tree_of. */
static int begin(pages_t *pages, u64 map_bytes, u64 transaction, u64 *root, u32 *depth) {
    if (map_bytes < META_END)
        return at_fault(pages, 0, BEYOND);
    u32 page_bytes = read_32(pages->map + META_FREE);
    if (page_bytes < PAGE_BYTES_MIN || page_bytes > PAGE_BYTES_MAX || page_bytes & (page_bytes - 1))
        return at_fault(pages, 0, DAMAGED);
    pages->page_bytes = page_bytes;
    pages->pages = map_bytes / page_bytes;
    if (pages->pages < 2)
        return at_fault(pages, 1, BEYOND);
    u64 found, other, unused_root;
    u32 unused_depth;
    if (read_meta(pages, transaction % 2, &found, root, depth))
        return at_fault(pages, transaction % 2, DAMAGED);
    /* The order matters: as long as the next commit is not there, the commit after it has not begun to write. */
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (read_meta(pages, (transaction + 1) % 2, &other, &unused_root, &unused_depth))
        return at_fault(pages, (transaction + 1) % 2, DAMAGED);
    if (found != transaction || other > transaction)
        return OTHER_COMMIT;
    if (*root != NOWHERE && (*depth < 1 || *depth > DEPTH_MAX))
        return at_fault(pages, *root, DAMAGED);
    return DONE;
}

static inline void note(const lane_t *lane, const u8 *map, u64 nth, u64 *values, u32 *value_bytes) {
    values[nth] = lane->value;
    value_bytes[nth] = lane->value_bytes;
    if (lane->value_bytes)
        __builtin_prefetch(map + lane->value);
}

static int find_some(pages_t *pages, lane_t *lanes, u32 count, u64 root, u32 depth) {
    int status = DONE;
    for (u32 nth = 0; nth < count; nth++)
        lanes[nth].number = root;
    for (u32 level = 1; level <= depth; level++) {
        int kind = level == depth ? LEAF : BRANCH;
        for (u32 nth = 0; nth < count; nth++)
            if ((status = enter(pages, &lanes[nth], kind)))
                return status;
        if ((status = search(pages, lanes, count, kind)))
            return status;
        for (u32 nth = 0; nth < count; nth++)
            if ((status = kind == BRANCH ? go_down(pages, &lanes[nth]) : take_value(pages, &lanes[nth])))
                return status;
    }
    return status;
}

static inline void set_key(const sought_t *sought, u64 nth, lane_t *lane) {
    lane->key = sought->keys + sought->ends[nth];
    lane->key_bytes = (u32)(sought->ends[nth + 1] - sought->ends[nth]);
}

/* Order of a node's key and the lane's, in *order. */
static inline int compare_node(pages_t *pages, const lane_t *lane, u32 nth, int *order) {
    const u8 *page = page_at(pages, lane->number);
    u32 node = node_of(pages, lane, nth);
    int32_t key_bytes = node ? key_bytes_of(pages, page, node) : -1;
    if (key_bytes < 0)
        return at_fault(pages, lane->number, DAMAGED);
    *order = compare_bytes(page + node + NODE_BYTES, (u32)key_bytes, lane->key, lane->key_bytes);
    return DONE;
}

/* Find the lane's next key in the leaf in which it has found one: where keys are in order and close to each other, that
 * is much less than to go down the tree. *is_here says whether the key must be in this leaf; else nothing is changed
 * but the lane's key. */
static int find_next(pages_t *pages, lane_t *lane, const sought_t *sought, u64 nth, int *is_here) {
    const u8 *before = lane->key;
    u32 before_bytes = lane->key_bytes, last = lane->entries - 1, step = 1, high = lane->low;
    int order, status;
    *is_here = 0;
    set_key(sought, nth, lane);
    if (compare_bytes(before, before_bytes, lane->key, lane->key_bytes) > 0)
        return DONE;
    if ((status = compare_node(pages, lane, last, &order)) || order < 0)
        return status;
    *is_here = 1;
    while (high < last) { /* the last one is not less */
        if ((status = compare_node(pages, lane, high, &order)))
            return status;
        if (order >= 0)
            break;
        lane->low = high + 1;
        high = last - high < step ? last : high + step;
        step *= 2;
    }
    lane->high = high;
    return (status = search(pages, lane, 1, LEAF)) ? status : take_value(pages, lane);
}

/* Find keys as of a transaction.
 *
 * map, map_bytes   the file, or the beginning of it
 * key_ends         count + 1 positions in keys: where each begins, and where the last one ends
 * values           count positions in the map
 * value_bytes      count sizes; 0 where there is no such key
 * bad              the page at which the search ended
 *
 * Returns OTHER_COMMIT if the tree of the transaction is not known any more, BEYOND if the map ends before a page, and
 * DAMAGED; what is in the results then means nothing.
 */
EXPORT int kv_find(const u8 *map, u64 map_bytes, u64 transaction, const u8 *keys, const i64 *key_ends, u64 count,
                   u64 *values, u32 *value_bytes, u64 *bad) {
    pages_t pages = {.map = map};
    u64 root;
    u32 depth;
    int status = begin(&pages, map_bytes, transaction, &root, &depth);
    sought_t sought = {keys, key_ends};
    if (!status && root == NOWHERE)
        memset(value_bytes, 0, count * sizeof *value_bytes);
    else
        for (u64 first = 0, width = LANES; !status && first < count;) {
            lane_t lanes[LANES];
            u32 some = count - first < width ? (u32)(count - first) : (u32)width;
            for (u32 nth = 0; nth < some; nth++)
                set_key(&sought, first + nth, &lanes[nth]);
            status = find_some(&pages, lanes, some, root, depth);
            for (u32 nth = 0; !status && nth < some; nth++)
                note(&lanes[nth], map, first + nth, values, value_bytes);
            first += some;
            lane_t *lane = &lanes[some - 1];
            u64 next = first;
            for (int is_here = 1; !status && next < count; next++) {
                if ((status = find_next(&pages, lane, &sought, next, &is_here)) || !is_here)
                    break;
                note(lane, map, next, values, value_bytes);
            }
            int is_close = next - first >= CLOSE || (some > CLOSE && lanes[some - 1 - CLOSE].number == lane->number);
            width = is_close ? 1 : width * 4 < LANES ? width * 4 : LANES;
            first = next;
        }
    *bad = pages.bad;
    return status;
}

/* The same for a few keys.
 *
 * memory  the sizes of the keys, 8 bytes each; then the keys, one after the other
 * target  places and sizes of the values, 8 bytes each, and bad; then memory for the call (FEW_WORDS in
 *         kvstore/kernel/pages.py)
 */
EXPORT int kv_few_find(const u8 *map, u64 map_bytes, u64 transaction, const u8 *memory, u64 count, u8 *target) {
    u64 *values = (u64 *)target, *sizes = values + count, *bad = sizes + count;
    i64 *ends = (i64 *)(bad + 1);
    u32 *value_bytes = (u32 *)(ends + count + 1);
    ends[0] = 0;
    for (u64 nth = 0; nth < count; nth++)
        ends[nth + 1] = ends[nth] + (i64)read_64(memory + nth * NUMBER_BYTES);
    int status = kv_find(map, map_bytes, transaction, memory + count * NUMBER_BYTES, ends, count, values, value_bytes, bad);
    for (u64 nth = 0; nth < count; nth++)
        sizes[nth] = value_bytes[nth];
    return status;
}

/* Copy values that kv_find has found, one after the other. */
EXPORT void kv_copy(const u8 *map, const u64 *values, const u32 *value_bytes, u64 count, u8 *target) {
    for (u64 nth = 0; nth < count; nth++) {
        memcpy(target, map + values[nth], value_bytes[nth]);
        target += value_bytes[nth];
    }
}
