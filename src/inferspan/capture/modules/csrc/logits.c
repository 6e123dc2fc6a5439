/* The sums and extremes of a row of finite float32 logits, in three passes over a row that stays in the cache: what logits/reductions.py needs some
 * twenty torch operations for, each of which goes over the row and writes a temporary one.
 *
 * Sums of a chunk are taken in float32, in LANES partial sums, and those of the chunks in float64. */
#include "recorder.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

enum { CHUNK = 512, LANES = 16 };

/* As reductions.COLUMNS. */
enum { LARGEST, SECOND, TOP_P, WEIGHTED, LOW, SHIFT, SPREAD, NONFINITE, NAN_COUNT, INF_COUNT, CHOSEN, LOGIT, LARGER, COLUMNS };

typedef struct {
    float largest, second, smallest;
    int32_t nonfinite;
} Extremes;

typedef struct {
    double exponentials, weighted, below;
} Sums;

/* x, but -87 where x, which is at most 0, is below it. Magnitudes are ordered as their bits are; comparing these is no branch to a compiler that minds
 * floating point traps, and which would not do many at a time. */
static inline float
bounded(float x)
{
    const uint32_t limit = 0xc2ae0000; /* -87 */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = bits > limit ? limit : bits;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* exp(x) for x from -87 to 0. With n the whole number next to x / ln 2 it is 2^n exp(r); the series of exp(r) to the seventh power is off by less than
 * r^8 / 8! = 6e-9 where |r| <= ln(2) / 2, a tenth of what float32 can tell. ln 2 is taken off in two parts, the first of which has so few digits that
 * its product with n is exact. */
static inline float
exponential(float x)
{
    const int32_t whole = (int32_t)(x * 1.44269504f - 0.5f), bits = (whole + 127) << 23;
    const float n = (float)whole, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float power, series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    memcpy(&power, &bits, sizeof power);
    return series * power;
}

FOR_EACH_PROCESSOR static void
look(const float *restrict row, int64_t count, Extremes *out)
{
    float largest[LANES], second[LANES], smallest[LANES];
    int32_t nonfinite[LANES] = {0};
    int64_t at = 0;
    for (int lane = 0; lane < LANES; lane++) {
        largest[lane] = second[lane] = -INFINITY;
        smallest[lane] = INFINITY;
    }
    for (; at + LANES <= count; at += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            const float x = row[at + lane], lesser = x < largest[lane] ? x : largest[lane];
            int32_t bits;
            memcpy(&bits, &row[at + lane], sizeof bits);
            nonfinite[lane] += (bits & 0x7fffffff) >= 0x7f800000;
            second[lane] = lesser > second[lane] ? lesser : second[lane];
            largest[lane] = x > largest[lane] ? x : largest[lane];
            smallest[lane] = x < smallest[lane] ? x : smallest[lane];
        }
    *out = (Extremes){-INFINITY, -INFINITY, INFINITY, 0};
    for (int lane = 0; lane < LANES; lane++) {
        const float lesser = largest[lane] < out->largest ? largest[lane] : out->largest;
        out->second = lesser > out->second ? lesser : out->second;
        out->second = second[lane] > out->second ? second[lane] : out->second;
        out->largest = largest[lane] > out->largest ? largest[lane] : out->largest;
        out->smallest = smallest[lane] < out->smallest ? smallest[lane] : out->smallest;
        out->nonfinite += nonfinite[lane];
    }
    for (; at < count; at++) {
        const float x = row[at], lesser = x < out->largest ? x : out->largest;
        int32_t bits;
        memcpy(&bits, &row[at], sizeof bits);
        out->nonfinite += (bits & 0x7fffffff) >= 0x7f800000;
        out->second = lesser > out->second ? lesser : out->second;
        out->largest = x > out->largest ? x : out->largest;
        out->smallest = x < out->smallest ? x : out->smallest;
    }
}

/* Values below -87 count as -87: exp of it is nothing beside the 1 of the largest. */
FOR_EACH_PROCESSOR static void
add_up(const float *restrict row, int64_t count, float largest, Sums *out)
{
    *out = (Sums){0, 0, 0};
    for (int64_t begin = 0; begin < count; begin += CHUNK) {
        const int64_t end = count - begin < CHUNK ? count : begin + CHUNK;
        float sums[LANES] = {0}, weighted[LANES] = {0}, total[LANES] = {0};
        int64_t at = begin;
        for (; at + LANES <= end; at += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                const float below = row[at + lane] - largest, near = bounded(below), one = exponential(near);
                sums[lane] += one;
                weighted[lane] += one * near;
                total[lane] += below;
            }
        for (; at < end; at++) {
            const float below = row[at] - largest, near = bounded(below), one = exponential(near);
            sums[0] += one;
            weighted[0] += one * near;
            total[0] += below;
        }
        for (int lane = 0; lane < LANES; lane++) {
            out->exponentials += sums[lane];
            out->weighted += weighted[lane];
            out->below += total[lane];
        }
    }
}

/* Sum of the squares of x - largest - mean, and the number of values above `logit`. */
FOR_EACH_PROCESSOR static double
spread_of(const float *restrict row, int64_t count, float largest, float mean, float logit, int64_t *larger)
{
    double found = 0;
    *larger = 0;
    for (int64_t begin = 0; begin < count; begin += CHUNK) {
        const int64_t end = count - begin < CHUNK ? count : begin + CHUNK;
        float squares[LANES] = {0};
        int32_t above[LANES] = {0};
        int64_t at = begin;
        for (; at + LANES <= end; at += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                const float off = row[at + lane] - largest - mean;
                squares[lane] += off * off;
                above[lane] += row[at + lane] > logit;
            }
        for (; at < end; at++) {
            const float off = row[at] - largest - mean;
            squares[0] += off * off;
            above[0] += row[at] > logit;
        }
        for (int lane = 0; lane < LANES; lane++) {
            found += squares[lane];
            *larger += above[lane];
        }
    }
    return found;
}

/* Whether the row could be reduced: all of it is finite, and so is every difference of two. */
static int
reduce_row(const float *row, int64_t count, const int64_t *chosen, float *out)
{
    Extremes extremes;
    Sums sums;
    int64_t larger, place = 0;
    look(row, count, &extremes);
    if (extremes.nonfinite || !(extremes.largest - extremes.smallest <= 3.402823466e38f))
        return 0;
    add_up(row, count, extremes.largest, &sums);
    if (chosen)
        place = *chosen < 0 ? 0 : *chosen >= count ? count - 1 : *chosen;
    const double mean = sums.below / (double)count;
    out[LARGEST] = extremes.largest;
    out[SECOND] = extremes.second;
    out[TOP_P] = (float)(1 / sums.exponentials);
    out[WEIGHTED] = (float)(sums.weighted / sums.exponentials);
    out[LOW] = extremes.smallest - extremes.largest;
    out[SHIFT] = (float)mean;
    out[SPREAD] = (float)(spread_of(row, count, extremes.largest, (float)mean, row[place], &larger) / (double)count);
    out[NONFINITE] = out[NAN_COUNT] = out[INF_COUNT] = 0;
    out[CHOSEN] = chosen ? (float)*chosen : NAN;
    out[LOGIT] = chosen ? row[place] : NAN;
    out[LARGER] = chosen ? (float)larger : NAN;
    return 1;
}

PyObject *
reduce_logits(PyObject *module, PyObject *args)
{
    unsigned long long address, ids, target;
    long long rows, count, stride, step;
    if (!PyArg_ParseTuple(args, "KLLLKLK", &address, &rows, &count, &stride, &ids, &step, &target))
        return NULL;
    if (!address || !target || rows < 1 || count < 2 || stride < 0) {
        PyErr_SetString(PyExc_ValueError, "no such logits");
        return NULL;
    }
    const float *row = (const float *)(uintptr_t)address;
    const int64_t *chosen = (const int64_t *)(uintptr_t)ids;
    float *out = (float *)(uintptr_t)target;
    int done = 1;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t number = 0; done && number < rows; number++)
        done = reduce_row(row + number * stride, count, chosen ? chosen + number * step : NULL, out + number * COLUMNS);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(done);
}
