/* Loops that Python would hold its lock for: copies of rows and boxes, chunks that are decoded one
 * after the other, packed values, and matrices with their zeros. Every function has a counterpart in
 * numpy that does the same, slower.
 *
 * Rows are copied past the processor's cache if wanted. An ordinary store first reads the line it is about to overwrite, and keeps it in the cache.
 * Batches are written once, far more of them than a cache holds, and read much later: neither
 * helps. The stores used here avoid both where a whole line is written; the ends of a row that
 * share a line with other rows are stored in the usual way.
 */
#include <emmintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LINE = 64, STEP = 8 }; /* bytes of a cache line, and its items of 8 bytes */

static void copy_row(char *to, const char *from, size_t size)
{
    size_t head = -(uintptr_t)to % LINE;
    if (head > size)
        head = size;
    memcpy(to, from, head);
    for (to += head, from += head, size -= head; size >= LINE; size -= LINE) {
        __m128i a = _mm_loadu_si128((const __m128i *)from);
        __m128i b = _mm_loadu_si128((const __m128i *)from + 1);
        __m128i c = _mm_loadu_si128((const __m128i *)from + 2);
        __m128i d = _mm_loadu_si128((const __m128i *)from + 3);
        _mm_stream_si128((__m128i *)to, a);
        _mm_stream_si128((__m128i *)to + 1, b);
        _mm_stream_si128((__m128i *)to + 2, c);
        _mm_stream_si128((__m128i *)to + 3, d);
        to += LINE;
        from += LINE;
    }
    memcpy(to, from, size);
}

/* rows[targets[i]] = items[index[i]] for each i < count, without an array of either: i itself.
 * Items are stride bytes apart, each of size bytes, and may overlap.
 * Returns how many were copied: fewer than count where the next target or index is out of range. */
int64_t penstock_copy(char *rows, int64_t row_count, const int64_t *targets, const char *items,
                      int64_t item_count, const int64_t *index, int64_t stride, int64_t count,
                      int64_t size, int64_t past)
{
    int64_t i = 0;
    for (; i < count; i++) {
        int64_t to = targets ? targets[i] : i, from = index ? index[i] : i;
        if (to < 0 || to >= row_count || from < 0 || from >= item_count)
            break;
        if (index && i + 6 < count) { /* the first lines of a later item; hardware does the rest */
            int64_t later = index[i + 6];
            for (int64_t b = 0; b < size && b < 512 && later >= 0 && later < item_count; b += LINE)
                __builtin_prefetch(items + later * stride + b);
        }
        if (past)
            copy_row(rows + to * size, items + from * stride, (size_t)size);
        else
            memcpy(rows + to * size, items + from * stride, (size_t)size);
    }
    _mm_sfence(); /* other threads must see the rows before the count */
    return i;
}

static char *copy_box(char *to, const char *from, int64_t axes, const int64_t *shape,
                      const int64_t *strides, int64_t item, int64_t past)
{
    if (axes == 1) {
        if (past)
            copy_row(to, from, (size_t)(shape[0] * item));
        else
            memcpy(to, from, (size_t)(shape[0] * item));
        return to + shape[0] * item;
    }
    for (int64_t i = 0; i < shape[0]; i++)
        to = copy_box(to, from + i * strides[0], axes - 1, shape + 1, strides + 1, item, past);
    return to;
}

/* rows[targets[i]] = steps boxes of one shape, for each i < count. table[i] has the first byte of
 * each of them in held, then the strides of each in bytes; along the last axis items are adjacent.
 * Returns how many were copied: fewer than count where the next one is out of range. */
int64_t penstock_copy_boxes(char *rows, int64_t row_count, const int64_t *targets,
                            const char *held, int64_t held_bytes, const int64_t *table,
                            int64_t count, int64_t steps, int64_t axes, const int64_t *shape,
                            int64_t item, int64_t past)
{
    int64_t i = 0, box = item;
    for (int64_t a = 0; a < axes; a++)
        box *= shape[a];
    for (; i < count; i++, table += steps * (1 + axes)) {
        if (targets[i] < 0 || targets[i] >= row_count)
            break;
        char *to = rows + targets[i] * box * steps;
        int64_t j = 0;
        for (; j < steps; j++) {
            const int64_t *strides = table + steps + j * axes;
            int64_t end = table[j] + item;
            for (int64_t a = 0; a < axes; a++)
                end += (shape[a] - 1) * strides[a];
            if (table[j] < 0 || end > held_bytes)
                break;
            to = copy_box(to, held + table[j], axes, shape, strides, item, past);
        }
        if (j < steps)
            break;
    }
    _mm_sfence();
    return i;
}

/* Copy sizes[i] bytes from address begins[i], one after the other, for each i < count. */
void penstock_join(char *to, const int64_t *begins, const int64_t *sizes, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (i + 4 < count)
            __builtin_prefetch((const char *)(intptr_t)begins[i + 4]);
        memcpy(to, (const char *)(intptr_t)begins[i], (size_t)sizes[i]);
        to += sizes[i];
    }
}

/* Decode count chunks of one size: sizes[i] bytes from begins[i] to address outs[i]. The function is
 * ZSTD_decompressDCtx. Returns how many were decoded: fewer where it returned another size. */
int64_t penstock_decode(size_t (*decompress)(void *, void *, size_t, const void *, size_t),
                        void *context, const char *stored, const int64_t *begins,
                        const int64_t *sizes, const int64_t *outs, int64_t nbytes, int64_t count)
{
    int64_t i = 0;
    for (; i < count; i++)
        if (decompress(context, (void *)(intptr_t)outs[i], (size_t)nbytes, stored + begins[i],
                       (size_t)sizes[i]) != (size_t)nbytes)
            break;
    return i;
}

/* out[i] = table[stored[i]], of 4 bytes each, for stored items of 1 or 2 bytes. */
void penstock_lookup(uint32_t *out, const void *stored, int64_t item, const uint32_t *table,
                     int64_t count)
{
    const uint8_t *bytes = stored;
    const uint16_t *pairs = stored;
    if (item == 1)
        for (int64_t i = 0; i < count; i++)
            out[i] = table[bytes[i]];
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = table[pairs[i]];
}

/* Rows of width numbers: zeros, and at columns[j] the sum of values[j] for each of the lengths[i]
 * items of row i. Its values and columns begin at two addresses. The columns were checked. */
#define DENSE(name, number, integer)                                                               \
    static void name(number *out, const int64_t *values, const int64_t *columns,                   \
                     const int64_t *lengths, int64_t rows, int64_t width)                          \
    {                                                                                              \
        for (int64_t i = 0; i < rows; i++, out += width) {                                         \
            const number *value = (const number *)(intptr_t)values[i];                             \
            const integer *column = (const integer *)(intptr_t)columns[i];                         \
            for (int64_t j = 0; i + 1 < rows && j < lengths[i + 1] && j < 1024; j += STEP) {       \
                __builtin_prefetch((const number *)(intptr_t)values[i + 1] + j);                   \
                __builtin_prefetch((const integer *)(intptr_t)columns[i + 1] + j);                 \
            }                                                                                      \
            memset(out, 0, (size_t)width * sizeof(number));                                        \
            for (int64_t j = 0; j < lengths[i]; j++)                                               \
                out[column[j]] += value[j];                                                        \
        }                                                                                          \
    }
DENSE(dense_f4_i4, float, int32_t)
DENSE(dense_f4_i8, float, int64_t)
DENSE(dense_f8_i4, double, int32_t)
DENSE(dense_f8_i8, double, int64_t)

void penstock_dense_rows(void *out, int64_t item, const int64_t *values, const int64_t *columns,
                         int64_t index, const int64_t *lengths, int64_t rows, int64_t width)
{
    if (item == 4 && index == 4)
        dense_f4_i4(out, values, columns, lengths, rows, width);
    else if (item == 4)
        dense_f4_i8(out, values, columns, lengths, rows, width);
    else if (index == 4)
        dense_f8_i4(out, values, columns, lengths, rows, width);
    else
        dense_f8_i8(out, values, columns, lengths, rows, width);
}
