/* Records module calls on the model's path: the twin, in C, of python_recorder.py and boundaries.py.
 *
 * In: calls of observed modules. Out: rows of one cache line each, shown as the flat sequence of the twin, and times between events of a
 * device. Optional: without it the Python twin does the same for some four times the cost. Between two kernel launches Python's own memory
 * is cold, so what counts is how many objects a call touches: two readings of the clock, two shapes that are compared, one row. What is
 * not met in nearly every call (other shapes, statistics, failures, copies of modules) is left to Python. Limited API only, and no
 * header of torch or CUDA.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdint.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#else
#include <time.h>
#endif

/* Raised with every change of what Python and C expect of each other. */
#define ABI 2

/* What recorder.py gives in `bind`. */
static PyObject *current;        /* .call is the request that runs on this thread */
static PyObject *describe;       /* shapes.describe */
static PyObject *failed;         /* called with an exception of ours */
static PyObject *error_type;     /* call.error_type */
static PyTypeObject *tensor;     /* torch.Tensor itself, no subclass */
static Py_ssize_t most_entries;  /* shapes.MAX_ENTRIES */
static PyObject *nothing;        /* () */
static PyObject *perf_counter;   /* time.perf_counter_ns */
static PyObject *tracing;        /* torch._C._get_tracing_state */
static PyObject *call_impl;      /* nn.Module._call_impl */
static PyObject *tables;         /* its globals, with the tables of hooks of all modules */
static PyObject *str_append, *str_call, *str_call_impl, *str_dtype, *str_fast, *str_forward, *str_instead, *str_modules, *str_other, *str_record,
    *str_seconds, *str_shape;

enum { TABLES = 4 };
static PyObject *str_tables[TABLES], *str_global_tables[TABLES];

static int64_t
now_ns(void)
{
    /* The clock of time.perf_counter_ns(). */
#if defined(_WIN32)
    static int64_t frequency;
    LARGE_INTEGER ticks;
    if (frequency == 0) {
        LARGE_INTEGER each;
        QueryPerformanceFrequency(&each);
        frequency = each.QuadPart;
    }
    QueryPerformanceCounter(&ticks);
    return (ticks.QuadPart / frequency) * 1000000000LL + (ticks.QuadPart % frequency) * 1000000000LL / frequency;
#elif defined(__APPLE__)
    return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW);
#else
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (int64_t)moment.tv_sec * 1000000000LL + moment.tv_nsec;
#endif
}

static PyObject *
owned(PyObject *object)
{
    Py_INCREF(object);
    return object;
}

/* ------------------------------------------------------------------------------------------------------------------- rows */

typedef struct {
    int32_t number;
    int32_t parent;
    PyObject *info;
    int64_t start;
    int64_t end;
    PyObject *inputs;
    PyObject *outputs;
    PyObject *failure;   /* NULL is None */
    int64_t statistics;  /* -1 is None */
} Row;

typedef struct {
    int32_t number;
    uint64_t serial; /* no two frames of a tape have the same */
    PyObject *info;
    int64_t start;
    PyObject *inputs;
} Frame;

enum { NUMBER, PARENT, INFO, START, END, INPUTS, OUTPUTS, FAILURE, STATISTICS, FIELDS };

static void
drop_rows(Row *rows, Py_ssize_t count)
{
    for (Py_ssize_t place = 0; place < count; place++) {
        Py_XDECREF(rows[place].info);
        Py_XDECREF(rows[place].inputs);
        Py_XDECREF(rows[place].outputs);
        Py_XDECREF(rows[place].failure);
    }
    PyMem_Free(rows);
}

/* ------------------------------------------------------------------------------------------------------------------ Calls */

typedef struct {
    PyObject_HEAD
    Row *rows;
    Py_ssize_t count;
} Calls;

static PyTypeObject *calls_type;

static void
calls_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    drop_rows(((Calls *)self)->rows, ((Calls *)self)->count);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t
calls_length(PyObject *self)
{
    return ((Calls *)self)->count * FIELDS;
}

static PyObject *
calls_field(const Row *row, int field)
{
    switch (field) {
    case NUMBER:
        return PyLong_FromLong(row->number);
    case PARENT:
        return PyLong_FromLong(row->parent);
    case INFO:
        return owned(row->info);
    case START:
        return PyLong_FromLongLong(row->start);
    case END:
        return PyLong_FromLongLong(row->end);
    case INPUTS:
        return owned(row->inputs);
    case OUTPUTS:
        return owned(row->outputs);
    case FAILURE:
        return owned(row->failure ? row->failure : Py_None);
    default:
        return row->statistics < 0 ? owned(Py_None) : PyLong_FromLongLong(row->statistics);
    }
}

static PyObject *
calls_item(PyObject *self, Py_ssize_t place)
{
    Calls *calls = (Calls *)self;
    if (place < 0 || place >= calls->count * FIELDS) {
        PyErr_SetString(PyExc_IndexError, "index out of range");
        return NULL;
    }
    return calls_field(&calls->rows[place / FIELDS], (int)(place % FIELDS));
}

static PyObject *
calls_subscript(PyObject *self, PyObject *key)
{
    Py_ssize_t start, stop, step, length = calls_length(self);
    if (!PySlice_Check(key)) {
        Py_ssize_t place = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (place == -1 && PyErr_Occurred())
            return NULL;
        return calls_item(self, place < 0 ? place + length : place);
    }
    if (PySlice_Unpack(key, &start, &stop, &step) < 0)
        return NULL;
    length = PySlice_AdjustIndices(length, &start, &stop, step);
    PyObject *list = PyList_New(length);
    if (!list)
        return NULL;
    for (Py_ssize_t place = 0; place < length; place++, start += step) {
        PyObject *value = calls_item(self, start);
        if (!value || PyList_SetItem(list, place, value) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return list;
}

static PyType_Slot calls_slots[] = {
    {Py_tp_doc, (void *)"Ended module calls, flat in the layout of ModuleCall; slices are lists."},
    {Py_tp_dealloc, calls_dealloc},
    {Py_sq_length, calls_length},
    {Py_sq_item, calls_item},
    {Py_mp_length, calls_length},
    {Py_mp_subscript, calls_subscript},
    {0, NULL},
};

static PyType_Spec calls_spec = {"inferspan.capture.modules._recorder.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, calls_slots};

/* ------------------------------------------------------------------------------------------------------------------- CallLog */

typedef struct {
    PyObject_HEAD
    Py_ssize_t room, missed, count;
    PyObject *engine, *clock, *output_stats; /* NULL is None */
    Frame *frames;
    Py_ssize_t open, frames_room;
    Row *rows;
    Py_ssize_t recorded, rows_room, usual; /* rows, as many as there is room for, as many as the last pass had */
    uint64_t serial;
} CallLog;

static PyTypeObject *tape_type;

static PyObject *
tape_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    CallLog *tape = (CallLog *)allocate(type, 0);
    if (!tape)
        return NULL;
    tape->engine = owned(Py_None);
    tape->clock = owned(Py_None);
    tape->output_stats = owned(Py_None);
    return (PyObject *)tape;
}

static void
drop_frames(Frame *frames, Py_ssize_t count)
{
    for (Py_ssize_t place = 0; place < count; place++) {
        Py_DECREF(frames[place].info);
        Py_DECREF(frames[place].inputs);
    }
    PyMem_Free(frames);
}

static void
forget_calls(CallLog *tape)
{
    Frame *frames = tape->frames;
    Row *rows = tape->rows;
    Py_ssize_t open = tape->open, recorded = tape->recorded;
    tape->frames = NULL;
    tape->rows = NULL;
    tape->open = tape->frames_room = tape->recorded = tape->rows_room = 0;
    drop_frames(frames, open);
    drop_rows(rows, recorded);
}

static int
tape_clear(PyObject *self)
{
    CallLog *tape = (CallLog *)self;
    Py_CLEAR(tape->engine);
    Py_CLEAR(tape->clock);
    Py_CLEAR(tape->output_stats);
    forget_calls(tape);
    return 0;
}

static int
tape_traverse(PyObject *self, visitproc visit, void *arg)
{
    CallLog *tape = (CallLog *)self;
    /* What rows refer to is shared, and refers to no tape. */
    Py_VISIT(tape->engine);
    Py_VISIT(tape->clock);
    Py_VISIT(tape->output_stats);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
tape_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    tape_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Both return 0, or -1 with an exception set; neither runs any Python. */
static int
push_frame(CallLog *tape, PyObject *info, PyObject *inputs, int64_t moment)
{
    if (tape->open == tape->frames_room) {
        Py_ssize_t room = tape->frames_room ? 2 * tape->frames_room : 16;
        Frame *frames = PyMem_Realloc(tape->frames, (size_t)room * sizeof(Frame));
        if (!frames) {
            PyErr_NoMemory();
            return -1;
        }
        tape->frames = frames;
        tape->frames_room = room;
    }
    Frame *frame = &tape->frames[tape->open++];
    frame->number = (int32_t)tape->count++;
    frame->serial = ++tape->serial;
    frame->info = owned(info);
    frame->inputs = owned(inputs);
    frame->start = moment;
    tape->room--;
    return 0;
}

/* `failure` is NULL or a str; `statistics` is -1 or an index. There must be an open call. */
static int
pop_frame(CallLog *tape, int64_t moment, PyObject *outputs, PyObject *failure, int64_t statistics)
{
    if (tape->recorded == tape->rows_room) {
        Py_ssize_t room = tape->rows_room ? 2 * tape->rows_room : tape->usual > 64 ? tape->usual : 64;
        Row *rows = PyMem_Realloc(tape->rows, (size_t)room * sizeof(Row));
        if (!rows) {
            PyErr_NoMemory();
            return -1;
        }
        tape->rows = rows;
        tape->rows_room = room;
    }
    const Frame *frame = &tape->frames[--tape->open];
    Row *row = &tape->rows[tape->recorded++];
    row->number = frame->number;
    row->parent = tape->open ? frame[-1].number : -1;
    row->info = frame->info; /* with the frame's references */
    row->inputs = frame->inputs;
    row->start = frame->start;
    row->end = moment;
    row->outputs = owned(outputs);
    Py_XINCREF(failure);
    row->failure = failure;
    row->statistics = statistics;
    return 0;
}

/* 1 if the innermost open call is now that of `info`, 0 if there is none, -1 with an exception set. */
static int
reach(CallLog *tape, PyObject *info, int64_t moment, PyObject *failure)
{
    Py_ssize_t place = tape->open;
    while (place > 0 && tape->frames[place - 1].info != info)
        place--;
    if (place == 0)
        return 0;
    while (tape->open > place)
        if (pop_frame(tape, moment, nothing, failure, -1) < 0)
            return -1;
    return 1;
}

static PyObject *
tape_enter(PyObject *self, PyObject *args)
{
    CallLog *tape = (CallLog *)self;
    PyObject *info, *inputs;
    long long moment;
    if (!PyArg_ParseTuple(args, "OOL:enter", &info, &inputs, &moment) || push_frame(tape, info, inputs, moment) < 0)
        return NULL;
    return PyLong_FromLong(tape->frames[tape->open - 1].number);
}

static PyObject *
tape_reach(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"info", "now", "failure", NULL};
    CallLog *tape = (CallLog *)self;
    PyObject *info, *failure = str_other;
    long long moment;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL|U:reach", names, &info, &moment, &failure))
        return NULL;
    int found = reach(tape, info, moment, failure);
    return found < 0 ? NULL : PyLong_FromLong(found ? tape->frames[tape->open - 1].number : -1);
}

static PyObject *
tape_leave(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"now", "outputs", "failure", "statistics", NULL};
    CallLog *tape = (CallLog *)self;
    PyObject *outputs = nothing, *failure = Py_None, *statistics = Py_None;
    long long moment, slot = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|OOO:leave", names, &moment, &outputs, &failure, &statistics))
        return NULL;
    if (statistics != Py_None && (slot = PyLong_AsLongLong(statistics)) == -1 && PyErr_Occurred())
        return NULL;
    if (tape->open == 0) {
        PyErr_SetString(PyExc_IndexError, "no module call is open");
        return NULL;
    }
    if (pop_frame(tape, moment, outputs, failure == Py_None ? NULL : failure, slot) < 0)
        return NULL;
    return owned(Py_None);
}

static PyObject *
tape_begun_before(PyObject *self, PyObject *moment)
{
    CallLog *tape = (CallLog *)self;
    long long limit = PyLong_AsLongLong(moment);
    if (limit == -1 && PyErr_Occurred())
        return NULL;
    for (Py_ssize_t place = 0; place < tape->recorded; place++)
        if (tape->rows[place].start < limit)
            return PyBool_FromLong(1);
    return PyBool_FromLong(0);
}

static PyObject *
tape_cut(PyObject *self, PyObject *unused)
{
    CallLog *tape = (CallLog *)self;
    Calls *calls = PyObject_New(Calls, calls_type);
    if (!calls)
        return NULL;
    calls->count = tape->usual = tape->recorded;
    calls->rows = tape->rows;
    if (tape->recorded < tape->rows_room / 2) {
        /* It may be kept for long. */
        Row *rows = PyMem_Realloc(tape->rows, (size_t)(tape->recorded ? tape->recorded : 1) * sizeof(Row));
        calls->rows = rows ? rows : tape->rows;
    }
    tape->rows = NULL;
    tape->recorded = tape->rows_room = 0;
    return (PyObject *)calls;
}

static PyObject *
tape_discard(PyObject *self, PyObject *unused)
{
    forget_calls((CallLog *)self);
    return owned(Py_None);
}

static PyObject *
tape_adopt(PyObject *self, PyObject *given)
{
    CallLog *tape = (CallLog *)self, *other = (CallLog *)given;
    if (!PyObject_TypeCheck(given, tape_type)) {
        PyErr_SetString(PyExc_TypeError, "adopt() takes a tape");
        return NULL;
    }
    Frame *frames = PyMem_Malloc((size_t)(other->open + 1) * sizeof(Frame));
    Row *rows = PyMem_Malloc((size_t)(other->recorded + 1) * sizeof(Row));
    if (!frames || !rows) {
        PyMem_Free(frames);
        PyMem_Free(rows);
        return PyErr_NoMemory();
    }
    if (other->open)
        memcpy(frames, other->frames, (size_t)other->open * sizeof(Frame));
    if (other->recorded)
        memcpy(rows, other->rows, (size_t)other->recorded * sizeof(Row));
    for (Py_ssize_t place = 0; place < other->open; place++) {
        Py_INCREF(frames[place].info);
        Py_INCREF(frames[place].inputs);
    }
    for (Py_ssize_t place = 0; place < other->recorded; place++) {
        Py_INCREF(rows[place].info);
        Py_INCREF(rows[place].inputs);
        Py_INCREF(rows[place].outputs);
        Py_XINCREF(rows[place].failure);
    }
    CallLog before = *tape;
    tape->room = other->room;
    tape->missed = other->missed;
    tape->count = other->count;
    tape->serial = other->serial;
    Py_XINCREF(tape->engine = other->engine);
    Py_XINCREF(tape->clock = other->clock);
    Py_XINCREF(tape->output_stats = other->output_stats);
    tape->frames = frames;
    tape->frames_room = (tape->open = other->open) + 1;
    tape->rows = rows;
    tape->rows_room = (tape->recorded = other->recorded) + 1;
    /* What runs when these go finds the tape whole. */
    Py_XDECREF(before.engine);
    Py_XDECREF(before.clock);
    Py_XDECREF(before.output_stats);
    drop_frames(before.frames, before.open);
    drop_rows(before.rows, before.recorded);
    return owned(Py_None);
}

static PyMemberDef tape_members[] = {
    {"room", T_PYSSIZET, offsetof(CallLog, room), 0, NULL},
    {"missed", T_PYSSIZET, offsetof(CallLog, missed), 0, NULL},
    {"count", T_PYSSIZET, offsetof(CallLog, count), 0, NULL},
    {"engine", T_OBJECT, offsetof(CallLog, engine), 0, NULL},
    {"clock", T_OBJECT, offsetof(CallLog, clock), 0, NULL},
    {"output_stats", T_OBJECT, offsetof(CallLog, output_stats), 0, NULL},
    {"open_calls", T_PYSSIZET, offsetof(CallLog, open), READONLY, NULL},
    {"recorded", T_PYSSIZET, offsetof(CallLog, recorded), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef tape_methods[] = {
    {"enter", tape_enter, METH_VARARGS, NULL},
    {"reach", (PyCFunction)(void (*)(void))tape_reach, METH_VARARGS | METH_KEYWORDS, NULL},
    {"leave", (PyCFunction)(void (*)(void))tape_leave, METH_VARARGS | METH_KEYWORDS, NULL},
    {"begun_before", tape_begun_before, METH_O, NULL},
    {"cut", tape_cut, METH_NOARGS, NULL},
    {"discard", tape_discard, METH_NOARGS, NULL},
    {"adopt", tape_adopt, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tape_slots[] = {
    {Py_tp_doc, (void *)"See tape.CallLog."},
    {Py_tp_new, tape_new},
    {Py_tp_dealloc, tape_dealloc},
    {Py_tp_traverse, tape_traverse},
    {Py_tp_clear, tape_clear},
    {Py_tp_members, tape_members},
    {Py_tp_methods, tape_methods},
    {0, NULL},
};

static PyType_Spec tape_spec = {
    "inferspan.capture.modules._recorder.CallLog", sizeof(CallLog), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, tape_slots};

/* ----------------------------------------------------------------------------------------------------------------- shapes */

/* DLPack's interface between libraries, https://dmlc.github.io/dlpack/latest/c_api.html, as far as it is used here. By it a tensor's type and
 * sizes are read where they lie; an attribute of Python makes an object of each, which takes three times as long as all else here. It also
 * asks for the address of the data, which gives a lazy clone (torch._lazy_clone) its own copy before anything is written to it. */
typedef struct {
    void *data;
    struct {
        int32_t type, index;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct {
    struct {
        struct {
            uint32_t major, minor;
        } version;
        void *previous;
    } header;
    void *allocator, *managed_from_object, *managed_to_object;
    int (*tensor_from_object)(void *object, DLTensor *out);
    void *current_work_stream;
} DLPackExchangeAPI;

/* NULL where this torch has no such thing, and in a program full of tensors that DLPack has no words for: torch takes a millisecond to say so. */
static int (*view)(void *object, DLTensor *out);
static int refusals;
enum { MOST_REFUSALS = 32 };

/* What a module was last called with, or last gave: its description, and a key to tell by whether the next is alike. */
enum { SHORT = 5, UNKNOWN_KEY = -1, NO_KEY = -2 };
typedef struct {
    PyObject *known;      /* tuple of pairs, (shape, dtype) */
    int32_t length;       /* of the key, or one of the above */
    int64_t brief[SHORT]; /* the key: for each tensor its type and dimensions in one, then its sizes */
    int64_t *more;        /* or here, where it is longer */
} Like;

/* Goes through the plain tensors in what a module was given or has returned. */
typedef struct {
    enum { BY_PAIRS, BY_KEY, BUILD } how;
    Like *like;
    PyObject *known;
    Py_ssize_t place; /* in `known` */
    int32_t at;       /* in the key */
    int64_t *key;     /* being built */
} Walk;

enum { LONGEST = 256, UNSIGNED = 1 };

static int64_t
kind_of(const DLTensor *seen)
{
    return ((int64_t)seen->ndim << 32) | ((int64_t)seen->dtype.lanes << 16) | (seen->dtype.bits << 8) | seen->dtype.code;
}

/* Whether the walk goes on with `value`, a plain tensor. -1 with an exception set, such as for one without a shape. */
static int
meet(Walk *walk, PyObject *value)
{
    if (walk->how != BY_PAIRS) {
        DLTensor seen;
        memset(&seen, 0, sizeof(seen));
        if (!view)
            return 0;
        if (view(value, &seen) != 0) {
            if (++refusals >= MOST_REFUSALS)
                view = NULL;
            if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
                return -1;
            PyErr_Clear();
            walk->like->length = NO_KEY;
            return 0;
        }
        const int64_t *key = walk->like->more ? walk->like->more : walk->like->brief;
        int32_t after = walk->at + 1 + seen.ndim;
        size_t bytes = (size_t)seen.ndim * sizeof(int64_t);
        if (seen.ndim < 0 || (bytes && !seen.shape) || after > (walk->how == BUILD ? LONGEST : walk->like->length))
            return 0;
        /* By DLPack torch's integers of 1 to 7 bits are such of 8: none of them gets into a key. */
        if (walk->how == BUILD && seen.dtype.code <= UNSIGNED && seen.dtype.bits == 8)
            return 0;
        if (walk->how == BUILD) {
            walk->key[walk->at] = kind_of(&seen);
            if (bytes)
                memcpy(walk->key + walk->at + 1, seen.shape, bytes);
        }
        else if (key[walk->at] != kind_of(&seen) || (bytes && memcmp(key + walk->at + 1, seen.shape, bytes) != 0))
            return 0;
        walk->at = after;
        return 1;
    }
    if (walk->place >= PyTuple_Size(walk->known))
        return 0;
    PyObject *pair = PyTuple_GetItem(walk->known, walk->place++), *dtype = PyObject_GetAttr(value, str_dtype);
    if (!dtype)
        return -1;
    Py_DECREF(dtype); /* torch keeps one object of each */
    if (dtype != PyTuple_GetItem(pair, 1))
        return 0;
    PyObject *shape = PyObject_GetAttr(value, str_shape);
    if (!shape)
        return -1;
    int same = PyObject_RichCompareBool(shape, PyTuple_GetItem(pair, 0), Py_EQ);
    Py_DECREF(shape);
    return same;
}

static int
is_scalar(PyTypeObject *type)
{
    return type == &PyFloat_Type || type == &PyLong_Type || type == &PyBool_Type || type == &PyUnicode_Type;
}

/* As shapes.describe_like: whether the walk goes on with `value`. */
static int
goes_on(Walk *walk, PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (value == Py_None)
        return 1;
    if (type == tensor)
        return meet(walk, value);
    if (type == &PyTuple_Type) {
        Py_ssize_t parts = PyTuple_Size(value);
        if (parts > most_entries)
            return 0;
        for (Py_ssize_t part = 0; part < parts; part++) {
            PyObject *one = PyTuple_GetItem(value, part);
            int same = Py_TYPE(one) == tensor ? meet(walk, one) : 0;
            if (same <= 0)
                return same;
        }
        return 1;
    }
    return is_scalar(type) || !(PyDict_Check(value) || PyList_Check(value) || PyTuple_Check(value) || PyType_IsSubtype(type, tensor));
}

/* Whether the walk comes to the end of `value`, a tensor or a tuple of what was given or returned, and of the values of `named` (NULL or a
 * dict), and finds as much as it should. */
static int
walk_through(Walk *walk, PyObject *value, PyObject *named)
{
    PyObject *key, *one;
    Py_ssize_t position = 0, entries = named ? PyDict_Size(named) : 0;
    int same;
    if (Py_TYPE(value) == tensor)
        same = goes_on(walk, value);
    else {
        Py_ssize_t count = PyTuple_Size(value);
        if (entries && count > 8)
            count = 8;
        same = count + entries <= most_entries;
        for (Py_ssize_t part = 0; same > 0 && part < count; part++)
            same = goes_on(walk, PyTuple_GetItem(value, part));
        while (same > 0 && named && PyDict_Next(named, &position, &key, &one)) {
            /* A dictionary may change while a mode of the program's is asked for a shape. */
            Py_INCREF(one);
            same = goes_on(walk, one);
            Py_DECREF(one);
        }
    }
    if (same <= 0 || walk->how == BUILD)
        return same;
    /* Another thread may have been here meanwhile, and left a key that is not of `known`. */
    return walk->how == BY_PAIRS ? walk->place == PyTuple_Size(walk->known)
           : walk->at == walk->like->length && walk->like->known == walk->known;
}

static void
build_key(Like *like, PyObject *value, PyObject *named)
{
    int64_t key[LONGEST];
    Walk walk = {.how = BUILD, .like = like, .known = like->known, .key = key};
    int64_t *more = NULL;
    if (walk_through(&walk, value, named) <= 0) {
        PyErr_Clear();
        like->length = NO_KEY;
        return;
    }
    if (like->known != walk.known)
        return;
    if (walk.at > SHORT && !(more = PyMem_Malloc((size_t)walk.at * sizeof(int64_t))))
        return;
    memcpy(more ? more : like->brief, key, (size_t)walk.at * sizeof(int64_t));
    PyMem_Free(like->more);
    like->more = more;
    like->length = walk.at;
}

static void
forget_like(Like *like)
{
    PyObject *known = like->known;
    like->known = NULL;
    like->length = UNKNOWN_KEY;
    PyMem_Free(like->more);
    like->more = NULL;
    Py_XDECREF(known);
}

/* Describe as shapes.describe_like does; `*like` is what the last call of the module was like. A new reference, NULL with an exception set. */
static PyObject *
described(Like *like, PyObject *value, PyObject *named)
{
    PyObject *known = owned(like->known), *found, *values = NULL;
    Walk walk = {.how = like->length >= 0 && view ? BY_KEY : BY_PAIRS, .like = like, .known = known};
    int same = walk_through(&walk, value, named);
    if (same == 0 && walk.how == BY_KEY && like->length == NO_KEY) {
        walk = (Walk){.how = BY_PAIRS, .like = like, .known = known};
        same = walk_through(&walk, value, named);
    }
    if (same > 0) {
        /* Python may have run since: only what is still the last one may get a key. */
        if (walk.how == BY_PAIRS && like->length == UNKNOWN_KEY && view && like->known == known)
            build_key(like, value, named);
        return known;
    }
    Py_DECREF(known);
    if (same < 0) {
        /* A nested tensor has no shape, for one; what describes it at leisure knows. */
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        PyErr_Clear();
    }
    if (named) {
        Py_ssize_t count = PyTuple_Size(value);
        PyObject *given = PyTuple_GetSlice(value, 0, count < 8 ? count : 8);
        PyObject *more = PyDict_Values(named), *rest = more ? PyList_AsTuple(more) : NULL;
        if (given && rest)
            values = PySequence_Concat(given, rest);
        Py_XDECREF(given);
        Py_XDECREF(more);
        Py_XDECREF(rest);
        if (!values)
            return NULL;
    }
    found = PyObject_CallFunctionObjArgs(describe, values ? values : value, NULL);
    Py_XDECREF(values);
    if (found && !PyTuple_Check(found)) {
        Py_DECREF(found);
        PyErr_SetString(PyExc_TypeError, "describe() has not returned a tuple");
        return NULL;
    }
    if (found) {
        PyObject *before = like->known;
        like->known = owned(found);
        if (like->length != NO_KEY)
            like->length = UNKNOWN_KEY;
        Py_DECREF(before);
    }
    return found;
}

/* ----------------------------------------------------------------------------------------------------------------- Events */

enum { NOTHING = -1, SUCCESS = 0, NOT_READY = 600, MOST_DEVICES = 8 };

typedef int (*RecordEvent)(void *event, void *stream);
typedef int (*ElapsedTime)(float *milliseconds, void *begin, void *end);

/* The events of one device's pool, where the driver's own functions are at hand. The lists are the pool's. */
typedef struct {
    PyObject_HEAD
    PyObject *free;      /* list of slots */
    PyObject *handles;   /* list of the driver's handles, by slot */
    PyObject *stream;    /* stream(index) is the handle of the device's current stream */
    PyObject *capturing; /* capturing() is whether the current device's current stream captures a graph */
    PyObject *device;    /* device() is the current device */
    PyObject *index;
    RecordEvent record;
    ElapsedTime elapsed;
    char several, enabled;
} Events;

static PyTypeObject *events_type;

static int
events_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"free", "handles", "stream", "capturing", "device", "index", "record", "elapsed", "several", NULL};
    Events *events = (Events *)self;
    PyObject *given[6];
    unsigned long long record, elapsed;
    int several;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOKKp:Events", names, &given[0], &given[1], &given[2], &given[3], &given[4],
                                     &given[5], &record, &elapsed, &several))
        return -1;
    if (events->free || !PyList_Check(given[0]) || !PyList_Check(given[1]) || !record || !elapsed) {
        PyErr_SetString(PyExc_TypeError, "Events() is made once, of two lists and the addresses of two functions");
        return -1;
    }
    PyObject **places[] = {&events->free, &events->handles, &events->stream, &events->capturing, &events->device, &events->index};
    for (int place = 0; place < 6; place++)
        *places[place] = owned(given[place]);
    events->record = (RecordEvent)(uintptr_t)record;
    events->elapsed = (ElapsedTime)(uintptr_t)elapsed;
    events->several = (char)several;
    events->enabled = 1;
    return 0;
}

static int
events_clear(PyObject *self)
{
    Events *events = (Events *)self;
    events->enabled = 0;
    Py_CLEAR(events->free);
    Py_CLEAR(events->handles);
    Py_CLEAR(events->stream);
    Py_CLEAR(events->capturing);
    Py_CLEAR(events->device);
    Py_CLEAR(events->index);
    return 0;
}

static int
events_traverse(PyObject *self, visitproc visit, void *arg)
{
    Events *events = (Events *)self;
    Py_VISIT(events->free);
    Py_VISIT(events->handles);
    Py_VISIT(events->stream);
    Py_VISIT(events->capturing);
    Py_VISIT(events->device);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
events_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    events_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* As DriverEvents.record: 0 and the slot in `*slot` (NOTHING while a graph is captured), 1 if the pool has to be asked, -1 with an
 * exception set. */
static int
events_record(Events *events, int32_t *slot)
{
    PyObject *answer;
    if (!events->enabled || !events->free)
        return 1;
    if (events->several) {
        if (!(answer = PyObject_CallFunctionObjArgs(events->device, NULL)))
            return -1;
        int here = PyObject_RichCompareBool(answer, events->index, Py_EQ);
        Py_DECREF(answer);
        if (here <= 0)
            return here < 0 ? -1 : 1;
    }
    if (!(answer = PyObject_CallFunctionObjArgs(events->stream, events->index, NULL)))
        return -1;
    void *stream = PyLong_AsVoidPtr(answer);
    Py_DECREF(answer);
    if (!stream && PyErr_Occurred())
        return -1;
    /* The default stream, which has no handle, cannot capture. */
    if (stream) {
        if (!(answer = PyObject_CallFunctionObjArgs(events->capturing, NULL)))
            return -1;
        int captures = PyObject_IsTrue(answer);
        Py_DECREF(answer);
        if (captures) {
            *slot = NOTHING;
            return captures < 0 ? -1 : 0;
        }
    }
    Py_ssize_t left = PyList_Size(events->free);
    if (left <= 0)
        return 1;
    PyObject *taken = owned(PyList_GetItem(events->free, left - 1));
    if (PyList_SetSlice(events->free, left - 1, left, NULL) < 0) {
        Py_DECREF(taken);
        return -1;
    }
    long number = PyLong_AsLong(taken);
    PyObject *handle = number >= 0 ? PyList_GetItem(events->handles, number) : NULL;
    void *event = handle ? PyLong_AsVoidPtr(handle) : NULL;
    if (!event) {
        Py_DECREF(taken);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "an event of the device clock has no handle");
        return -1;
    }
    int status;
    if (events->several) {
        /* One that waits for room in a device's queue would keep those out that could make room. */
        Py_BEGIN_ALLOW_THREADS
        status = events->record(event, stream);
        Py_END_ALLOW_THREADS
    }
    else
        status = events->record(event, stream);
    /* What the driver has refused is tried again and told of in Python. */
    int back = status == SUCCESS ? 0 : PyList_Append(events->free, taken);
    Py_DECREF(taken);
    *slot = (int32_t)number;
    return back < 0 ? -1 : status != SUCCESS;
}

static PyMemberDef events_members[] = {
    {"enabled", T_BOOL, offsetof(Events, enabled), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot events_slots[] = {
    {Py_tp_doc, (void *)"Records and reads the events of one pool by the driver's functions; what is not ordinary is left to the pool."},
    {Py_tp_init, events_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, events_dealloc},
    {Py_tp_traverse, events_traverse},
    {Py_tp_clear, events_clear},
    {Py_tp_members, events_members},
    {0, NULL},
};

static PyType_Spec events_spec = {"inferspan.capture.modules._recorder.Events", sizeof(Events), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, events_slots};

/* The Events of a pool as a new reference; None where it has none, NULL with an exception set. */
static PyObject *
events_of(PyObject *pool)
{
    PyObject *fast = PyObject_GetAttr(pool, str_fast);
    if (fast && fast != Py_None && Py_TYPE(fast) != events_type) {
        Py_DECREF(fast);
        PyErr_SetString(PyExc_TypeError, "the fast events of a pool are of another kind");
        return NULL;
    }
    return fast;
}

/* ------------------------------------------------------------------------------------------------------------------ BoundaryEvents */

typedef struct {
    int32_t number; /* of the call; inverted where it ends */
    int32_t place;  /* of the boundary */
} Mark;

typedef struct {
    PyObject_HEAD
    int devices;
    int32_t *slots; /* by boundary, then by device */
    Py_ssize_t boundaries;
    Mark *marks;
    Py_ssize_t count;
} BoundaryEvents;

static PyTypeObject *marks_type;

static void
marks_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((BoundaryEvents *)self)->slots);
    PyMem_Free(((BoundaryEvents *)self)->marks);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *
marks_lane(PyObject *self, PyObject *which)
{
    BoundaryEvents *marks = (BoundaryEvents *)self;
    long device = PyLong_AsLong(which);
    if (device == -1 && PyErr_Occurred())
        return NULL;
    if (device < 0 || device >= marks->devices) {
        PyErr_SetString(PyExc_IndexError, "there is no such device");
        return NULL;
    }
    PyObject *lane = PyList_New(marks->boundaries);
    for (Py_ssize_t place = 0; lane && place < marks->boundaries; place++) {
        PyObject *slot = PyLong_FromLong(marks->slots[place * marks->devices + device]);
        if (!slot || PyList_SetItem(lane, place, slot) < 0)
            Py_CLEAR(lane);
    }
    return lane;
}

typedef struct {
    int32_t number, begin, end;
    double seconds;
} Span;

/* The calls with both boundaries, the pass itself first; their count, or -1 with an exception set. Frees nothing of `marks`. */
static Py_ssize_t
pair_marks(const BoundaryEvents *marks, Py_ssize_t begin, Py_ssize_t end, Span **found)
{
    /* Calls are numbered from 0 on, and each begins once. */
    Py_ssize_t most = 0;
    for (Py_ssize_t place = 0; place < marks->count; place++)
        if (marks->marks[place].number >= most)
            most = (Py_ssize_t)marks->marks[place].number + 1;
    int32_t *begun = PyMem_Malloc(((size_t)most + 1) * sizeof(int32_t));
    Span *spans = PyMem_Malloc(((size_t)marks->count + 1) * sizeof(Span));
    if (!begun || !spans) {
        PyMem_Free(begun);
        PyMem_Free(spans);
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t count = 0;
    memset(begun, 0xff, ((size_t)most + 1) * sizeof(int32_t));
    if (begin >= 0)
        spans[count++] = (Span){-1, (int32_t)begin, (int32_t)end, 0};
    for (Py_ssize_t place = 0; place < marks->count; place++) {
        Mark mark = marks->marks[place];
        if (mark.number >= 0)
            begun[mark.number] = mark.place;
        else if (~mark.number < most && begun[~mark.number] >= 0) {
            spans[count++] = (Span){~mark.number, begun[~mark.number], mark.place, 0};
            begun[~mark.number] = -1;
        }
    }
    PyMem_Free(begun);
    *found = spans;
    return count;
}

/* The slot of a boundary; NOTHING where there is none. */
static int32_t
slot_of(const BoundaryEvents *marks, int32_t boundary, int device)
{
    return boundary >= 0 && boundary < marks->boundaries ? marks->slots[(Py_ssize_t)boundary * marks->devices + device] : NOTHING;
}

/* 1 with the seconds of all spans on one device, 0 if the device has not come so far, -1 with an exception set, 2 if the driver refuses. */
static int
read_spans(const BoundaryEvents *marks, int device, Events *events, Span *spans, Py_ssize_t count)
{
    for (Py_ssize_t place = 0; place < count; place++) {
        double seconds = Py_NAN;
        int32_t begin = slot_of(marks, spans[place].begin, device), end = slot_of(marks, spans[place].end, device);
        if (begin >= 0 && begin == end)
            seconds = 0;
        else if (begin >= 0 && end >= 0) {
            float milliseconds = 0;
            PyObject *first = PyList_GetItem(events->handles, begin), *second = PyList_GetItem(events->handles, end);
            void *from = first ? PyLong_AsVoidPtr(first) : NULL, *to = second ? PyLong_AsVoidPtr(second) : NULL;
            if (PyErr_Occurred())
                return -1;
            int status = events->elapsed(&milliseconds, from, to);
            if (status == NOT_READY)
                return 0;
            if (status != SUCCESS)
                return 2;
            seconds = milliseconds * 1e-3;
        }
        /* The longest counts; not a number if one of them is not known. */
        if (device == 0 || spans[place].seconds < seconds || seconds != seconds)
            spans[place].seconds = seconds;
    }
    return 1;
}

/* The same by asking the pool, in Python. */
static int
ask_pool(const BoundaryEvents *marks, int device, PyObject *pool, Span *spans, Py_ssize_t count)
{
    PyObject *begins = PyList_New(count), *ends = PyList_New(count), *found = NULL;
    int known = -1;
    for (Py_ssize_t place = 0; begins && ends && place < count; place++) {
        PyObject *first = PyLong_FromLong(slot_of(marks, spans[place].begin, device));
        PyObject *second = PyLong_FromLong(slot_of(marks, spans[place].end, device));
        if (!first || !second || PyList_SetItem(begins, place, first) < 0 || PyList_SetItem(ends, place, second) < 0)
            goto done;
    }
    if (begins && ends)
        found = PyObject_CallMethodObjArgs(pool, str_seconds, begins, ends, NULL);
    if (found == Py_None)
        known = 0;
    else if (found && PyList_Check(found) && PyList_Size(found) == count) {
        known = 1;
        for (Py_ssize_t place = 0; place < count; place++) {
            double seconds = PyFloat_AsDouble(PyList_GetItem(found, place));
            if (seconds == -1.0 && PyErr_Occurred()) {
                known = -1;
                break;
            }
            if (device == 0 || spans[place].seconds < seconds || seconds != seconds)
                spans[place].seconds = seconds;
        }
    }
    else if (found)
        PyErr_SetString(PyExc_TypeError, "a pool has not answered with a list");
done:
    Py_XDECREF(begins);
    Py_XDECREF(ends);
    Py_XDECREF(found);
    return known;
}

static PyObject *
marks_seconds(PyObject *self, PyObject *args)
{
    BoundaryEvents *marks = (BoundaryEvents *)self;
    PyObject *pools, *times = NULL;
    Py_ssize_t begin, end;
    Span *spans = NULL;
    if (!PyArg_ParseTuple(args, "O!nn:seconds", &PyTuple_Type, &pools, &begin, &end))
        return NULL;
    if (PyTuple_Size(pools) != marks->devices || begin >= marks->boundaries || (begin >= 0 && (end < 0 || end >= marks->boundaries))) {
        PyErr_SetString(PyExc_ValueError, "these boundaries are not of these devices, or there are none such");
        return NULL;
    }
    Py_ssize_t count = pair_marks(marks, begin, end, &spans);
    if (count < 0)
        return NULL;
    for (int device = 0; device < marks->devices; device++) {
        PyObject *pool = PyTuple_GetItem(pools, device), *fast = events_of(pool);
        int known = fast ? 2 : -1;
        if (fast && fast != Py_None && ((Events *)fast)->enabled && ((Events *)fast)->handles)
            known = read_spans(marks, device, (Events *)fast, spans, count);
        Py_XDECREF(fast);
        if (known == 2)
            known = ask_pool(marks, device, pool, spans, count);
        if (known <= 0) {
            if (known == 0)
                times = owned(Py_None);
            goto done;
        }
    }
    times = PyDict_New();
    for (Py_ssize_t place = 0; times && place < count; place++) {
        /* Boundaries on two streams that nothing orders can be the wrong way round, and some are missing. */
        if (!(spans[place].seconds >= 0))
            continue;
        PyObject *number = PyLong_FromLong(spans[place].number), *seconds = PyFloat_FromDouble(spans[place].seconds);
        if (!number || !seconds || PyDict_SetItem(times, number, seconds) < 0)
            Py_CLEAR(times);
        Py_XDECREF(number);
        Py_XDECREF(seconds);
    }
done:
    PyMem_Free(spans);
    return times;
}

static PyMemberDef marks_members[] = {
    {"count", T_PYSSIZET, offsetof(BoundaryEvents, boundaries), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef marks_methods[] = {
    {"lane", marks_lane, METH_O, NULL},
    {"seconds", marks_seconds, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot marks_slots[] = {
    {Py_tp_doc, (void *)"See boundaries.BoundaryEvents."},
    {Py_tp_dealloc, marks_dealloc},
    {Py_tp_members, marks_members},
    {Py_tp_methods, marks_methods},
    {0, NULL},
};

static PyType_Spec marks_spec = {"inferspan.capture.modules._recorder.BoundaryEvents", sizeof(BoundaryEvents), 0, Py_TPFLAGS_DEFAULT, marks_slots};

/* ------------------------------------------------------------------------------------------------------------- Boundaries */

typedef struct {
    PyObject_HEAD
    PyObject *pools;              /* tuple */
    PyObject *fast[MOST_DEVICES]; /* Events or None, by device */
    int devices;
    PyObject *clock; /* NULL is the usual one */
    int64_t share_ns, share_data_ns, recorded;
    int last;
    int32_t *slots;
    Py_ssize_t slots_room;
    Mark *marks;
    Py_ssize_t count, marks_room;
    PyObject **taken; /* weak references to what open calls took, NULL where there is none */
    Py_ssize_t open, taken_room;
    PyObject *given; /* weak reference to what the last call gave, or NULL */
} Boundaries;

static PyTypeObject *boundaries_type;

static void
forget_tensors(Boundaries *clock)
{
    for (Py_ssize_t place = 0; place < clock->open; place++)
        Py_XDECREF(clock->taken[place]);
    clock->open = 0;
    Py_CLEAR(clock->given);
}

static int
boundaries_clear(PyObject *self)
{
    Boundaries *clock = (Boundaries *)self;
    int devices = clock->devices;
    clock->devices = 0;
    forget_tensors(clock);
    Py_CLEAR(clock->pools);
    Py_CLEAR(clock->clock);
    for (int device = 0; device < devices; device++)
        Py_CLEAR(clock->fast[device]);
    return 0;
}

static int
boundaries_traverse(PyObject *self, visitproc visit, void *arg)
{
    Boundaries *clock = (Boundaries *)self;
    Py_VISIT(clock->pools);
    Py_VISIT(clock->clock);
    for (int device = 0; device < clock->devices; device++)
        Py_VISIT(clock->fast[device]);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
boundaries_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Boundaries *clock = (Boundaries *)self;
    PyObject_GC_UnTrack(self);
    boundaries_clear(self);
    PyMem_Free(clock->slots);
    PyMem_Free(clock->marks);
    PyMem_Free(clock->taken);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static int
boundaries_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"pools", "share_ns", "share_data_ns", "clock", NULL};
    Boundaries *boundaries = (Boundaries *)self;
    PyObject *given, *clock;
    long long share, share_data;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OLLO:Boundaries", names, &given, &share, &share_data, &clock))
        return -1;
    PyObject *pools = PySequence_Tuple(given);
    if (!pools)
        return -1;
    if (boundaries->pools || PyTuple_Size(pools) > MOST_DEVICES) {
        Py_DECREF(pools);
        PyErr_SetString(PyExc_ValueError, "Boundaries() is made once, of eight devices at most");
        return -1;
    }
    boundaries->pools = pools;
    for (int device = 0; device < PyTuple_Size(pools); device++) {
        if (!(boundaries->fast[device] = events_of(PyTuple_GetItem(pools, device))))
            return -1;
        boundaries->devices = device + 1;
    }
    boundaries->share_ns = share;
    boundaries->share_data_ns = share_data;
    boundaries->clock = clock == perf_counter ? NULL : owned(clock);
    boundaries->last = -1;
    return 0;
}

/* -1 with an exception set; no reading is negative. */
static int64_t
host_time(Boundaries *clock)
{
    if (!clock->clock)
        return now_ns();
    PyObject *reading = PyObject_CallFunctionObjArgs(clock->clock, NULL);
    int64_t moment = reading ? PyLong_AsLongLong(reading) : -1;
    Py_XDECREF(reading);
    return moment;
}

static int
record_boundary(Boundaries *clock)
{
    int32_t slots[MOST_DEVICES];
    int devices = clock->devices;
    for (int device = 0; device < devices; device++) {
        PyObject *fast = owned(clock->fast[device]);
        int ask = fast == Py_None ? 1 : events_record((Events *)fast, &slots[device]);
        Py_DECREF(fast);
        if (ask < 0) {
            /* As for one that the pool could not record. */
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                return -1;
            PyErr_Clear();
            ask = 1;
        }
        if (ask && clock->devices == devices) {
            PyObject *pool = owned(PyTuple_GetItem(clock->pools, device));
            PyObject *slot = PyObject_CallMethodObjArgs(pool, str_record, NULL);
            Py_DECREF(pool);
            if (!slot)
                return -1;
            slots[device] = (int32_t)PyLong_AsLong(slot);
            Py_DECREF(slot);
            if (slots[device] == -1 && PyErr_Occurred())
                return -1;
        }
        /* Python has run, and may have ended the request. */
        if (clock->devices != devices)
            return 0;
    }
    Py_ssize_t needed = ((Py_ssize_t)clock->last + 2) * devices;
    if (needed > clock->slots_room) {
        Py_ssize_t room = needed < 64 ? 128 : 2 * needed;
        int32_t *larger = PyMem_Realloc(clock->slots, (size_t)room * sizeof(int32_t));
        if (!larger) {
            PyErr_NoMemory();
            return -1;
        }
        clock->slots = larger;
        clock->slots_room = room;
    }
    clock->last++;
    for (int device = 0; device < devices; device++)
        clock->slots[(Py_ssize_t)clock->last * devices + device] = slots[device];
    clock->recorded = host_time(clock);
    return clock->recorded < 0 && PyErr_Occurred() ? -1 : 0;
}

static int
is_of(PyObject *reference, PyObject *object)
{
    return reference && PyWeakref_GetObject(reference) == object;
}

/* A weak reference to a plain tensor; NULL, and perhaps an exception, where there is none. */
static PyObject *
reference_to(PyObject *object)
{
    return Py_TYPE(object) == tensor ? PyWeakref_NewRef(object, NULL) : NULL;
}

static int
add_mark(Boundaries *clock, int64_t number)
{
    if (clock->count == clock->marks_room) {
        Py_ssize_t room = clock->marks_room ? 2 * clock->marks_room : 256;
        Mark *larger = PyMem_Realloc(clock->marks, (size_t)room * sizeof(Mark));
        if (!larger) {
            PyErr_NoMemory();
            return -1;
        }
        clock->marks = larger;
        clock->marks_room = room;
    }
    clock->marks[clock->count++] = (Mark){(int32_t)number, (int32_t)clock->last};
    return 0;
}

/* As Boundaries.enter of the twin; `moment` 0 is now. 0, or -1 with an exception set. */
static int
enter_boundary(Boundaries *clock, int64_t number, PyObject *taken, int64_t moment, int inner)
{
    if (!moment && (moment = host_time(clock)) < 0 && PyErr_Occurred())
        return -1;
    int64_t apart = moment - clock->recorded;
    if (apart >= clock->share_ns
        && (apart >= clock->share_data_ns || Py_TYPE(taken) != tensor
            || (!is_of(clock->given, taken) && !(clock->open && is_of(clock->taken[clock->open - 1], taken))))
        && record_boundary(clock) < 0)
        return -1;
    Py_CLEAR(clock->given);
    if (inner) {
        PyObject *reference = reference_to(taken);
        if (!reference && PyErr_Occurred())
            return -1;
        if (clock->open == clock->taken_room) {
            Py_ssize_t room = clock->taken_room ? 2 * clock->taken_room : 16;
            PyObject **larger = PyMem_Realloc(clock->taken, (size_t)room * sizeof(PyObject *));
            if (!larger) {
                Py_XDECREF(reference);
                PyErr_NoMemory();
                return -1;
            }
            clock->taken = larger;
            clock->taken_room = room;
        }
        clock->taken[clock->open++] = reference;
    }
    return add_mark(clock, number);
}

static int
leave_boundary(Boundaries *clock, int64_t number, PyObject *given, int64_t moment, int inner)
{
    if (!moment && (moment = host_time(clock)) < 0 && PyErr_Occurred())
        return -1;
    int64_t apart = moment - clock->recorded;
    if (Py_TYPE(given) == &PyTuple_Type && PyTuple_Size(given) > 0)
        given = PyTuple_GetItem(given, 0);
    /* Without a submodule since it was entered, a module that returns what it took has changed it in place. */
    if (apart >= clock->share_ns && (apart >= clock->share_data_ns || given == Py_None || !is_of(clock->given, given))
        && record_boundary(clock) < 0)
        return -1;
    PyObject *reference = reference_to(given), *before = clock->given;
    if (!reference && PyErr_Occurred())
        return -1;
    clock->given = reference;
    Py_XDECREF(before);
    if (inner && clock->open > 0) {
        before = clock->taken[--clock->open];
        Py_XDECREF(before);
    }
    return add_mark(clock, ~number);
}

static PyObject *
tell_boundary(PyObject *self, PyObject *args, PyObject *kwargs, int (*told)(Boundaries *, int64_t, PyObject *, int64_t, int))
{
    static char *names[] = {"number", "tensor", "now", "inner", NULL};
    PyObject *passed = Py_None;
    long long number, moment = 0;
    int inner = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|OL$p", names, &number, &passed, &moment, &inner))
        return NULL;
    if (number < 0 || number >= INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "there is no such number of a call");
        return NULL;
    }
    if (told((Boundaries *)self, number, passed, moment, inner) < 0)
        return NULL;
    return owned(Py_None);
}

static PyObject *
boundaries_enter(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return tell_boundary(self, args, kwargs, enter_boundary);
}

static PyObject *
boundaries_leave(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return tell_boundary(self, args, kwargs, leave_boundary);
}

static PyObject *
boundaries_record(PyObject *self, PyObject *unused)
{
    return record_boundary((Boundaries *)self) < 0 ? NULL : owned(Py_None);
}

static PyObject *
boundaries_cut(PyObject *self, PyObject *unused)
{
    Boundaries *clock = (Boundaries *)self;
    BoundaryEvents *marks = PyObject_New(BoundaryEvents, marks_type);
    if (!marks)
        return NULL;
    marks->devices = clock->devices;
    marks->slots = clock->slots;
    marks->boundaries = clock->devices ? clock->last + 1 : 0;
    marks->marks = clock->marks;
    marks->count = clock->count;
    clock->slots = NULL;
    clock->marks = NULL;
    clock->slots_room = clock->marks_room = clock->count = 0;
    clock->last = -1;
    clock->recorded = 0;
    forget_tensors(clock);
    return (PyObject *)marks;
}

static PyObject *
boundaries_forget(PyObject *self, PyObject *unused)
{
    Boundaries *clock = (Boundaries *)self;
    int devices = clock->devices;
    PyObject *before = clock->pools;
    clock->pools = owned(nothing);
    clock->devices = 0;
    for (int device = 0; device < devices; device++)
        Py_CLEAR(clock->fast[device]);
    Py_XDECREF(before);
    clock->last = -1;
    clock->recorded = 0;
    clock->count = 0;
    forget_tensors(clock);
    return owned(Py_None);
}

static PyMemberDef boundaries_members[] = {
    {"last", T_INT, offsetof(Boundaries, last), READONLY, NULL},
    {"recorded", T_LONGLONG, offsetof(Boundaries, recorded), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef boundaries_methods[] = {
    {"enter", (PyCFunction)(void (*)(void))boundaries_enter, METH_VARARGS | METH_KEYWORDS, NULL},
    {"leave", (PyCFunction)(void (*)(void))boundaries_leave, METH_VARARGS | METH_KEYWORDS, NULL},
    {"record", boundaries_record, METH_NOARGS, NULL},
    {"cut", boundaries_cut, METH_NOARGS, NULL},
    {"forget", boundaries_forget, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot boundaries_slots[] = {
    {Py_tp_doc, (void *)"See boundaries.Boundaries."},
    {Py_tp_init, boundaries_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, boundaries_dealloc},
    {Py_tp_traverse, boundaries_traverse},
    {Py_tp_clear, boundaries_clear},
    {Py_tp_members, boundaries_members},
    {Py_tp_methods, boundaries_methods},
    {0, NULL},
};

static PyType_Spec boundaries_spec = {"inferspan.capture.modules._recorder.Boundaries", sizeof(Boundaries), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, boundaries_slots};

/* ----------------------------------------------------------------------------------------------------------------- ModuleCaller */

typedef struct {
    PyObject_HEAD
    PyObject *module, *info, *engine;
    char inner, attached;
    Py_ssize_t running; /* calls that have begun and not ended, each with a reference of the frame that it was called from */
    Like taken, given;
} ModuleCaller;

static PyTypeObject *caller_type;

static int
caller_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"module", "info", "engine", NULL};
    ModuleCaller *caller = (ModuleCaller *)self;
    PyObject *module, *info, *engine;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:ModuleCaller", names, &module, &info, &engine))
        return -1;
    if (!current) {
        PyErr_SetString(PyExc_RuntimeError, "bind() comes first");
        return -1;
    }
    PyObject *inner = PyObject_GetAttr(module, str_modules);
    int truth = inner ? PyObject_IsTrue(inner) : -1;
    Py_XDECREF(inner);
    if (truth >= 0 && caller->module) {
        PyErr_SetString(PyExc_TypeError, "ModuleCaller() is made once");
        return -1;
    }
    if (truth < 0)
        return -1;
    caller->inner = (char)truth;
    caller->module = owned(module);
    caller->info = owned(info);
    caller->engine = owned(engine);
    caller->taken.known = owned(nothing);
    caller->given.known = owned(nothing);
    caller->taken.length = caller->given.length = UNKNOWN_KEY;
    return 0;
}

static int
caller_clear(PyObject *self)
{
    ModuleCaller *caller = (ModuleCaller *)self;
    Py_CLEAR(caller->module);
    Py_CLEAR(caller->info);
    Py_CLEAR(caller->engine);
    forget_like(&caller->taken);
    forget_like(&caller->given);
    return 0;
}

static int
caller_traverse(PyObject *self, visitproc visit, void *arg)
{
    ModuleCaller *caller = (ModuleCaller *)self;
    Py_VISIT(caller->module);
    Py_VISIT(caller->info);
    Py_VISIT(caller->engine);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
caller_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    caller_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* Whether _call_impl of the module, with the dictionary `own`, would do nothing but call its forward: PLAIN or NOT_PLAIN, or TRACED by
 * TorchScript, which would take a question for a shape into its graph; -1 with an exception set. */
enum { NOT_PLAIN, PLAIN, TRACED };

static int
is_plain(PyObject *module, PyObject *own)
{
    PyObject *found = PyObject_GetAttr((PyObject *)Py_TYPE(module), str_call_impl);
    if (!found)
        return -1;
    Py_DECREF(found); /* the class has it */
    int usual = found == call_impl;
    if (!(found = PyObject_CallFunctionObjArgs(tracing, NULL)))
        return -1;
    int traced = found == Py_None ? 0 : PyObject_IsTrue(found);
    Py_DECREF(found);
    if (traced)
        return traced < 0 ? -1 : TRACED;
    int plain = usual && PyDict_GetItemWithError(own, str_call_impl) == NULL && !PyErr_Occurred();
    for (int place = 0; plain > 0 && place < TABLES; place++) {
        PyObject *table = PyDict_GetItemWithError(own, str_tables[place]);
        plain = table ? PyObject_Not(table) : 0;
        if (plain > 0) {
            table = PyDict_GetItemWithError(tables, str_global_tables[place]);
            plain = table ? PyObject_Not(table) : 0;
        }
    }
    return plain < 0 || PyErr_Occurred() ? -1 : plain ? PLAIN : NOT_PLAIN;
}

/* Contain the exception that is set, one of ours; -1 if one is set that may not be contained, such as Ctrl-C. */
static int
contained(void)
{
    PyObject *type, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    PyObject *done = PyObject_CallFunctionObjArgs(failed, value, NULL);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    Py_XDECREF(done);
    if (done || !PyErr_ExceptionMatches(PyExc_Exception))
        return done ? 0 : -1;
    /* As next to the limit of recursion, where the module itself may still have room, or by a log handler of the program's. */
    PyErr_Clear();
    return 0;
}

static PyObject *
first_of(PyObject *args, PyObject *kwargs)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (PyTuple_Size(args) > 0)
        return PyTuple_GetItem(args, 0);
    return kwargs && PyDict_Next(kwargs, &position, &key, &value) ? value : Py_None;
}

/* Whether the frame that was pushed as `serial` is, or now becomes, the innermost open one: 1 yes, 0 no, -1 with an exception set. */
static int
is_innermost(CallLog *tape, uint64_t serial, PyObject *info, int64_t moment)
{
    if (tape->open > 0 && tape->frames[tape->open - 1].serial == serial)
        return 1;
    return reach(tape, info, moment, str_other);
}

/* 0, or -1 with an exception of ours set. */
static int
record_return(CallLog *tape, ModuleCaller *caller, uint64_t serial, Boundaries *clock, PyObject *output, int64_t moment)
{
    int innermost = is_innermost(tape, serial, caller->info, moment);
    if (innermost <= 0)
        return innermost;
    int64_t slot = -1;
    PyObject *statistics = NULL, *outputs = NULL;
    PyObject *collector = tape->output_stats;
    Py_XINCREF(collector);
    serial = tape->frames[tape->open - 1].serial;
    if (clock && leave_boundary(clock, tape->frames[tape->open - 1].number, output, moment, caller->inner) < 0)
        goto failure;
    if (Py_TYPE(output) == tensor || Py_TYPE(output) == &PyTuple_Type)
        outputs = described(&caller->given, output, NULL);
    else
        outputs = PyObject_CallFunctionObjArgs(describe, output, NULL);
    if (!outputs)
        goto failure;
    if (collector && collector != Py_None) {
        statistics = PyObject_CallMethodObjArgs(collector, str_append, output, NULL);
        if (!statistics)
            goto failure;
        if (statistics != Py_None && (slot = PyLong_AsLongLong(statistics)) == -1 && PyErr_Occurred())
            goto failure;
    }
    /* Python has run: another thread may have ended the request. */
    innermost = tape->open > 0 && tape->frames[tape->open - 1].serial == serial ? pop_frame(tape, moment, outputs, NULL, slot) : 0;
    Py_DECREF(outputs);
    Py_XDECREF(statistics);
    Py_XDECREF(collector);
    return innermost;

failure:
    /* Without what could not be found out of it, the call is none: its frame goes, as in the twin. */
    if (tape->open > 0 && tape->frames[tape->open - 1].serial == serial) {
        Frame *frame = &tape->frames[--tape->open];
        PyObject *info = frame->info, *inputs = frame->inputs;
        Py_DECREF(info);
        Py_DECREF(inputs);
    }
    Py_XDECREF(outputs);
    Py_XDECREF(statistics);
    Py_XDECREF(collector);
    return -1;
}

/* Record a call through which an exception passes; it stays set, unless one of ours that may not be contained takes its place. */
static void
record_failure(CallLog *tape, ModuleCaller *caller, uint64_t serial)
{
    PyObject *type, *value, *trace;
    int64_t moment = now_ns();
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *name = PyObject_CallFunctionObjArgs(error_type, value, NULL);
    int done = name ? is_innermost(tape, serial, caller->info, moment) : -1;
    if (done > 0)
        done = pop_frame(tape, moment, nothing, name, -1);
    Py_XDECREF(name);
    if (done < 0 && contained() < 0) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return;
    }
    PyErr_Restore(type, value, trace);
}

static PyObject *
recorded_call(ModuleCaller *caller, CallLog *tape, PyObject *forward, PyObject *args, PyObject *kwargs)
{
    PyObject *inputs = NULL;
    Boundaries *clock = NULL;
    Py_ssize_t named = kwargs ? PyDict_Size(kwargs) : 0;
    if (!named && PyTuple_Size(args) == 1 && Py_TYPE(PyTuple_GetItem(args, 0)) == tensor)
        inputs = described(&caller->taken, PyTuple_GetItem(args, 0), NULL);
    else
        inputs = described(&caller->taken, args, named ? kwargs : NULL);
    int64_t moment = now_ns();
    int begun = inputs ? push_frame(tape, caller->info, inputs, moment) : -1;
    Py_XDECREF(inputs);
    if (begun < 0)
        return contained() < 0 ? NULL : PyObject_Call(forward, args, kwargs);
    uint64_t serial = tape->frames[tape->open - 1].serial;
    int32_t number = tape->frames[tape->open - 1].number;
    if (tape->clock && PyObject_TypeCheck(tape->clock, boundaries_type))
        clock = (Boundaries *)owned(tape->clock);
    if (clock && enter_boundary(clock, number, first_of(args, kwargs), moment, caller->inner) < 0 && contained() < 0) {
        Py_DECREF(clock);
        return NULL;
    }
    PyObject *output = PyObject_Call(forward, args, kwargs);
    if (!output)
        record_failure(tape, caller, serial);
    else if (record_return(tape, caller, serial, clock, output, now_ns()) < 0 && contained() < 0)
        Py_CLEAR(output);
    Py_XDECREF(clock);
    return output;
}

/* Who refers to a caller that is called: the module's dictionary and who has put it there, and to the dictionary: the module and we. */
enum { CALLER_OWNERS = 2, DICTIONARY_OWNERS = 2 };

static PyObject *
call_module(PyObject *self, PyObject *args, PyObject *kwargs)
{
    ModuleCaller *caller = (ModuleCaller *)self;
    PyObject *own = PyObject_GenericGetDict(caller->module, NULL);
    if (!own)
        return NULL;
    /* Another module may have got this along with a copy of the dictionary, or the dictionary itself. Python 3.14 has flags in the upper half. */
    if (!caller->attached || (uint32_t)Py_REFCNT(self) != CALLER_OWNERS + caller->running || (uint32_t)Py_REFCNT(own) != DICTIONARY_OWNERS) {
        PyObject *instead = PyObject_CallMethodObjArgs(self, str_instead, NULL);
        if (!instead || instead != Py_None) {
            PyObject *output = instead ? PyObject_Call(instead, args, kwargs) : NULL;
            Py_XDECREF(instead);
            Py_DECREF(own);
            return output;
        }
        Py_DECREF(instead);
    }
    int plain = is_plain(caller->module, own);
    Py_DECREF(own);
    PyObject *forward = plain < 0 ? NULL : PyObject_GetAttr(caller->module, plain == PLAIN ? str_forward : str_call_impl);
    PyObject *output = NULL, *call = forward ? PyObject_GetAttr(current, str_call) : NULL;
    if (call) {
        CallLog *tape = (CallLog *)call;
        if (plain == TRACED || !PyObject_TypeCheck(call, tape_type) || tape->engine != caller->engine)
            output = PyObject_Call(forward, args, kwargs);
        else if (tape->room <= 0) {
            tape->missed++;
            output = PyObject_Call(forward, args, kwargs);
        }
        else
            output = recorded_call(caller, tape, forward, args, kwargs);
    }
    Py_XDECREF(call);
    Py_XDECREF(forward);
    return output;
}

static PyObject *
caller_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    ModuleCaller *caller = (ModuleCaller *)self;
    if (!caller->module) {
        PyErr_SetString(PyExc_TypeError, "this caller has no module");
        return NULL;
    }
    caller->running++;
    PyObject *output = call_module(self, args, kwargs);
    caller->running--;
    return output;
}

static PyMemberDef caller_members[] = {
    {"module", T_OBJECT, offsetof(ModuleCaller, module), READONLY, NULL},
    {"info", T_OBJECT, offsetof(ModuleCaller, info), READONLY, NULL},
    {"engine", T_OBJECT, offsetof(ModuleCaller, engine), READONLY, NULL},
    {"attached", T_BOOL, offsetof(ModuleCaller, attached), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot caller_slots[] = {
    {Py_tp_doc, (void *)"See python_recorder.ModuleCaller."},
    {Py_tp_call, caller_call},
    {Py_tp_init, caller_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, caller_dealloc},
    {Py_tp_traverse, caller_traverse},
    {Py_tp_clear, caller_clear},
    {Py_tp_members, caller_members},
    {0, NULL},
};

static PyType_Spec caller_spec = {"inferspan.capture.modules._recorder.ModuleCaller", sizeof(ModuleCaller), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, caller_slots};

/* ----------------------------------------------------------------------------------------------------------------- module */

/* 0, or -1 with an exception set; a torch that has no such interface, or a later one, is none. */
static int
find_view(PyObject *tensor_class)
{
    static const char *names[] = {"__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"};
    view = NULL;
    refusals = 0;
    for (int place = 0; place < 2 && !view; place++) {
        PyObject *capsule = PyObject_GetAttrString(tensor_class, names[place]);
        if (!capsule) {
            if (!PyErr_ExceptionMatches(PyExc_AttributeError))
                return -1;
            PyErr_Clear();
            continue;
        }
        if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
            const DLPackExchangeAPI *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
            if (found && found->header.version.major == 1)
                view = found->tensor_from_object;
        }
        Py_DECREF(capsule);
    }
    return 0;
}

static PyObject *
bind(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"current", "describe", "failed", "error_type", "tensor", "clock", "tracing", "call_impl", "tables", "most_entries", NULL};
    PyObject *given[9];
    Py_ssize_t entries;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOOOOn:bind", names, &given[0], &given[1], &given[2], &given[3], &given[4], &given[5],
                                     &given[6], &given[7], &given[8], &entries))
        return NULL;
    if (!PyType_Check(given[4]) || !PyDict_Check(given[8])) {
        PyErr_SetString(PyExc_TypeError, "tensor must be a class, and tables a dictionary");
        return NULL;
    }
    PyObject **places[] = {&current, &describe, &failed, &error_type, (PyObject **)&tensor, &perf_counter, &tracing, &call_impl, &tables};
    for (int place = 0; place < 9; place++) {
        PyObject *before = *places[place];
        *places[place] = owned(given[place]);
        Py_XDECREF(before);
    }
    most_entries = entries;
    return find_view(given[4]) < 0 ? NULL : owned(Py_None);
}

static PyMethodDef module_methods[] = {
    {"bind", (PyCFunction)(void (*)(void))bind, METH_VARARGS | METH_KEYWORDS, "Give what the calls need of Python; before the first of them."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "inferspan.capture.modules._recorder", NULL, -1, module_methods, NULL, NULL, NULL, NULL};

/* 0, or -1 with an exception set. Whoever loads this file once more gets the types that are in use. */
static int
add_type(PyObject *module, PyTypeObject **place, const char *name, PyType_Spec *spec)
{
    if (!*place && !(*place = (PyTypeObject *)PyType_FromSpec(spec)))
        return -1;
    if (PyModule_AddObject(module, name, owned((PyObject *)*place)) == 0)
        return 0;
    Py_DECREF(*place);
    return -1;
}

PyMODINIT_FUNC
PyInit__recorder(void)
{
    struct {
        PyObject **place;
        const char *text;
    } texts[] = {
        {&str_append, "append"},
        {&str_call, "call"},
        {&str_call_impl, "_call_impl"},
        {&str_dtype, "dtype"},
        {&str_fast, "fast"},
        {&str_forward, "forward"},
        {&str_instead, "_instead"},
        {&str_modules, "_modules"},
        {&str_other, "_OTHER"},
        {&str_record, "record"},
        {&str_seconds, "seconds"},
        {&str_shape, "shape"},
        {&str_tables[0], "_backward_hooks"},
        {&str_tables[1], "_backward_pre_hooks"},
        {&str_tables[2], "_forward_hooks"},
        {&str_tables[3], "_forward_pre_hooks"},
        {&str_global_tables[0], "_global_backward_hooks"},
        {&str_global_tables[1], "_global_backward_pre_hooks"},
        {&str_global_tables[2], "_global_forward_hooks"},
        {&str_global_tables[3], "_global_forward_pre_hooks"},
    };
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    for (size_t place = 0; place < sizeof(texts) / sizeof(*texts); place++)
        if (!*texts[place].place && !(*texts[place].place = PyUnicode_InternFromString(texts[place].text)))
            goto failure;
    if (!nothing && !(nothing = PyTuple_New(0)))
        goto failure;
    if (add_type(module, &calls_type, "Calls", &calls_spec) < 0 || add_type(module, &tape_type, "CallLog", &tape_spec) < 0
        || add_type(module, &events_type, "Events", &events_spec) < 0 || add_type(module, &marks_type, "BoundaryEvents", &marks_spec) < 0
        || add_type(module, &boundaries_type, "Boundaries", &boundaries_spec) < 0
        || add_type(module, &caller_type, "ModuleCaller", &caller_spec) < 0 || PyModule_AddIntConstant(module, "ABI", ABI) < 0)
        goto failure;
    return module;

failure:
    Py_DECREF(module);
    return NULL;
}
