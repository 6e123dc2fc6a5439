/* Reductions of the values of a tensor in the memory of the host, in one pass: what modules/reduced.py would need many torch operations for.
 *
 * The address, number and type of the values come from Python, which has made sure that they lie one after another. NaN and Inf are told by
 * their bits, so no option of a compiler changes the result. */
#include "recorder.h"

/* As reduced.KINDS. */
enum { FLOAT16, BFLOAT16, FLOAT32, FLOAT64, KINDS };

/* Values whose mean is taken before their squares are: they stay in the first level of the cache. */
enum { CHUNK = 1024, LANES = 8 };

/* Values beyond which other threads of Python run meanwhile. */
enum { ALONE = 1 << 15 };

typedef struct {
    int64_t nan, nonfinite, high;
} Counts;

typedef struct {
    double max, min, mean, square;
    int64_t nonfinite, nan, zeros, finite;
} Moments;

#define COUNT(NAME, BITS, SUM)                                                                                                            \
    static void NAME(const void *data, int64_t count, BITS magnitude, BITS infinity, BITS limit, Counts *out)                             \
    {                                                                                                                                     \
        const BITS *bits = data;                                                                                                          \
        while (count > 0) {                                                                                                               \
            /* Sums of the width of a value, so that as many are added at once as there are lanes; none can overflow. */                  \
            const int64_t most = sizeof(BITS) == 2 ? 16384 : 1 << 20, part = count < most ? count : most;                                 \
            SUM nan = 0, nonfinite = 0, high = 0;                                                                                         \
            for (int64_t at = 0; at < part; at++) {                                                                                       \
                BITS size = (BITS)(bits[at] & magnitude);                                                                                 \
                nan = (SUM)(nan + (size > infinity));                                                                                     \
                nonfinite = (SUM)(nonfinite + (size >= infinity));                                                                        \
                high = (SUM)(high + (size >= limit));                                                                                     \
            }                                                                                                                             \
            out->nan += nan;                                                                                                              \
            out->nonfinite += nonfinite;                                                                                                  \
            out->high += high;                                                                                                            \
            bits += part;                                                                                                                 \
            count -= part;                                                                                                                \
        }                                                                                                                                 \
    }

COUNT(count_16, uint16_t, uint16_t)
COUNT(count_32, uint32_t, uint32_t)
COUNT(count_64, uint64_t, uint64_t)

/* Join the moments of some further finite values: Chan, Golub and LeVeque, 1979. */
static void
join(Moments *out, double square, double mean, int64_t count)
{
    if (!count)
        return;
    double gap = mean - out->mean, before = (double)out->finite;
    out->finite += count;
    out->mean += gap * (double)count / (double)out->finite;
    out->square += square + gap * gap * before * (double)count / (double)out->finite;
}

/* Of at most CHUNK values, given as doubles with their finiteness: 1.0 or 0.0, and 0.0 in place of a value that is not finite. */
static void
add_chunk(Moments *out, const double *values, const double *finite, int64_t count)
{
    double sums[LANES] = {0}, numbers[LANES] = {0}, squares[LANES] = {0}, zeros[LANES] = {0};
    double sum = 0, number = 0, square = 0, zero = 0;
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            sums[lane] += values[at + lane];
            numbers[lane] += finite[at + lane];
            zeros[lane] += values[at + lane] == 0 ? finite[at + lane] : 0;
        }
    for (; at < count; at++) {
        sum += values[at];
        number += finite[at];
        zero += values[at] == 0 ? finite[at] : 0;
    }
    for (int lane = 0; lane < LANES; lane++) {
        sum += sums[lane];
        number += numbers[lane];
        zero += zeros[lane];
    }
    out->zeros += (int64_t)zero;
    if (!number)
        return;
    double mean = sum / number, max = out->max, min = out->min;
    for (at = 0; at + LANES <= count; at += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            double off = (values[at + lane] - mean) * finite[at + lane];
            squares[lane] += off * off;
        }
    for (; at < count; at++) {
        double off = (values[at] - mean) * finite[at];
        square += off * off;
    }
    for (int lane = 0; lane < LANES; lane++)
        square += squares[lane];
    at = 0;
    if (number == (double)count && count >= LANES) {
        double highest[LANES], lowest[LANES];
        memcpy(highest, values, sizeof highest);
        memcpy(lowest, values, sizeof lowest);
        for (; at + LANES <= count; at += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                highest[lane] = values[at + lane] > highest[lane] ? values[at + lane] : highest[lane];
                lowest[lane] = values[at + lane] < lowest[lane] ? values[at + lane] : lowest[lane];
            }
        for (int lane = 0; lane < LANES; lane++) {
            max = highest[lane] > max ? highest[lane] : max;
            min = lowest[lane] < min ? lowest[lane] : min;
        }
    }
    for (; at < count; at++)
        if (finite[at] != 0) {
            max = values[at] > max ? values[at] : max;
            min = values[at] < min ? values[at] : min;
        }
    out->max = max;
    out->min = min;
    join(out, square, mean, (int64_t)number);
}

static float
float_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, size = half & 0x7fff, bits;
    float value;
    if (size >= 0x0400) /* normal; what is not finite never gets here */
        bits = sign | ((size << 13) + ((127 - 15) << 23));
    else {
        /* A multiple of 2 ** -24. */
        value = (float)size * 5.9604644775390625e-08f;
        return sign ? -value : value;
    }
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float
float_of_bfloat(uint16_t bfloat)
{
    uint32_t bits = (uint32_t)bfloat << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

#define MOMENTS(NAME, BITS, MAGNITUDE, INFINITY_BITS, VALUE)                                                                              \
    static void NAME(const void *data, int64_t count, Moments *out)                                                                       \
    {                                                                                                                                     \
        const BITS *bits = data;                                                                                                          \
        double values[CHUNK], finite[CHUNK];                                                                                              \
        while (count > 0) {                                                                                                               \
            const int64_t part = count < CHUNK ? count : CHUNK;                                                                           \
            int32_t nan = 0, nonfinite = 0;                                                                                               \
            for (int64_t at = 0; at < part; at++) {                                                                                       \
                BITS size = (BITS)(bits[at] & MAGNITUDE);                                                                                 \
                BITS one = size < INFINITY_BITS ? bits[at] : 0;                                                                           \
                nan += size > INFINITY_BITS;                                                                                              \
                nonfinite += size >= INFINITY_BITS;                                                                                       \
                values[at] = VALUE;                                                                                                       \
                finite[at] = size < INFINITY_BITS;                                                                                        \
            }                                                                                                                             \
            out->nan += nan;                                                                                                              \
            out->nonfinite += nonfinite;                                                                                                  \
            add_chunk(out, values, finite, part);                                                                                         \
            bits += part;                                                                                                                 \
            count -= part;                                                                                                                \
        }                                                                                                                                 \
    }

static double
as_double(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double
as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

MOMENTS(moments_f16, uint16_t, 0x7fff, 0x7c00, float_of_half(one))
MOMENTS(moments_bf16, uint16_t, 0x7fff, 0x7f80, float_of_bfloat(one))
MOMENTS(moments_f32, uint32_t, 0x7fffffff, 0x7f800000, as_float(one))
MOMENTS(moments_f64, uint64_t, 0x7fffffffffffffff, 0x7ff0000000000000, as_double(one))

static int
arguments_of(PyObject *args, const void **data, int64_t *count, int *kind)
{
    unsigned long long address;
    long long number;
    if (!PyArg_ParseTuple(args, "KLi", &address, &number, kind))
        return -1;
    if (*kind < 0 || *kind >= KINDS || number < 0 || (number && !address)) {
        PyErr_SetString(PyExc_ValueError, "no such values");
        return -1;
    }
    *data = (const void *)(uintptr_t)address;
    *count = number;
    return 0;
}

PyObject *
count_values(PyObject *module, PyObject *args)
{
    const void *data;
    int64_t count;
    int kind;
    Counts found = {0, 0, 0};
    if (arguments_of(args, &data, &count, &kind) < 0)
        return NULL;
    PyThreadState *thread = count > ALONE ? PyEval_SaveThread() : NULL;
    /* The limits are halves of the largest value of each type. */
    switch (kind) {
    case FLOAT16:
        count_16(data, count, 0x7fff, 0x7c00, 0x77ff, &found);
        break;
    case BFLOAT16:
        count_16(data, count, 0x7fff, 0x7f80, 0x7eff, &found);
        break;
    case FLOAT32:
        count_32(data, count, 0x7fffffff, 0x7f800000, 0x7effffff, &found);
        break;
    default:
        count_64(data, count, 0x7fffffffffffffff, 0x7ff0000000000000, 0x7fdfffffffffffff, &found);
    }
    if (thread)
        PyEval_RestoreThread(thread);
    return Py_BuildValue("LLL", (long long)found.nan, (long long)(found.nonfinite - found.nan), (long long)(found.high - found.nonfinite));
}

PyObject *
moments_of(PyObject *module, PyObject *args)
{
    const void *data;
    int64_t count;
    int kind;
    if (arguments_of(args, &data, &count, &kind) < 0)
        return NULL;
    const double infinity = as_double(0x7ff0000000000000);
    Moments found = {-infinity, infinity, 0, 0, 0, 0, 0, 0};
    PyThreadState *thread = count > ALONE ? PyEval_SaveThread() : NULL;
    switch (kind) {
    case FLOAT16:
        moments_f16(data, count, &found);
        break;
    case BFLOAT16:
        moments_bf16(data, count, &found);
        break;
    case FLOAT32:
        moments_f32(data, count, &found);
        break;
    default:
        moments_f64(data, count, &found);
    }
    if (thread)
        PyEval_RestoreThread(thread);
    return Py_BuildValue("ddddLLL", found.max, found.min, found.mean, found.square, (long long)found.nonfinite, (long long)found.nan,
                         (long long)found.zeros);
}
