/* Copy rows to their targets past the processor's cache.
 *
 * An ordinary store first reads the line it is about to overwrite, and keeps it in the cache.
 * Batches are written once, far more of them than a cache holds, and read much later: neither
 * helps. The stores used here avoid both where a whole line is written; the ends of a row that
 * share a line with other rows are stored in the usual way.
 */
#include <emmintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { LINE = 64 };

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

/* rows[targets[i]] = items[i] for each i < count; items are stride bytes apart, each of size bytes.
 * Returns how many were copied: fewer than count where the next target is none of the rows. */
int64_t penstock_scatter(char *rows, int64_t row_count, const int64_t *targets, const char *items,
                         int64_t stride, int64_t count, int64_t size)
{
    int64_t i = 0;
    for (; i < count && targets[i] >= 0 && targets[i] < row_count; i++)
        copy_row(rows + targets[i] * size, items + i * stride, (size_t)size);
    _mm_sfence(); /* other threads must see the rows before the count */
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
