/* Shared by kept_outputs.c and kept_kinds.c: outputs that are kept, and their kinds. */
#ifndef INFERSPAN_KEPT_OUTPUTS_H
#define INFERSPAN_KEPT_OUTPUTS_H

#include "recorder.h"

enum { DEVICE_OF_HOST = 1, FLOAT = 2, BFLOAT = 4 }; /* kDLCPU, kDLFloat, kDLBfloat */
enum { MOST_KINDS = 64, FORMS = 2 };

/* The shape and type of a tensor. */
typedef struct {
    int64_t shape[SHORT_KEY], bytes, elements;
    int32_t dimensions;
    uint32_t type;
} Kind;

/* The outputs of a module: whether they can be kept, and the kinds of the last ones, whose memory is known to be small; -1 is none. */
typedef struct {
    int64_t calls, elements;
    int32_t forms[FORMS];
    int allowed;
} Expected;

typedef struct {
    PyObject *tensor;
    void *address;
    int64_t version, call, time;
    int32_t module, row; /* number of the recorded call in its pass, or -1 */
    int32_t kind, group, step; /* the group is the kind, or CHANGED */
} Kept;

/* What the caller keeps of a call: native sizes, see kept.NOTE. */
typedef struct {
    int64_t call, time;
    int32_t module, row, step, elements;
} Note;

typedef struct {
    PyObject_HEAD
    PyObject *stream, *capturing, *transforms, *functions; /* of torch, see kept.py */
    int64_t current_stream, bytes, most_bytes, most_elements, largest;
    int32_t device_type, device;
    int step;
    char running; /* whether Python has seen the pass */
    char records; /* whether a recorded call has no other statistics */
    char several; /* devices */
    Py_ssize_t looked, most_looked, most, count, modules;
    Kept *kept;
    Expected *expected;
    Kind kinds[MOST_KINDS];
    int32_t known_kinds;
} KeptOutputs;

static inline uint32_t
type_of(const DLTensor *view)
{
    return (uint32_t)view->dtype.code << 24 | (uint32_t)view->dtype.bits << 16 | view->dtype.lanes;
}

static inline void *
address_in(const DLTensor *view)
{
    return (char *)view->data + view->byte_offset;
}

/* Index of the kind of an output of a module, and the bytes that keeping it keeps; -1 if it cannot be kept. Raises nothing. */
int32_t kind_of(KeptOutputs *outputs, int32_t module, PyObject *tensor, const DLTensor *view, int64_t *memory);

#endif
