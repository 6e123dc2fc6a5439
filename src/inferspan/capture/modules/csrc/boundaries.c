/* Boundaries: which entries and exits of module calls in the running pass get an event. boundaries.Boundaries is its counterpart in Python. */
#include "recorder.h"

static void
forget_tensors(Boundaries *boundaries)
{
    for (Py_ssize_t place = 0; place < boundaries->open; place++)
        Py_XDECREF(boundaries->inputs[place]);
    boundaries->open = 0;
    Py_CLEAR(boundaries->output);
}

static int
boundaries_clear(PyObject *self)
{
    Boundaries *boundaries = (Boundaries *)self;
    int devices = boundaries->devices;
    boundaries->devices = 0;
    forget_tensors(boundaries);
    Py_CLEAR(boundaries->pools);
    Py_CLEAR(boundaries->clock);
    for (int device = 0; device < devices; device++)
        Py_CLEAR(boundaries->native[device]);
    return 0;
}

static int
boundaries_traverse(PyObject *self, visitproc visit, void *arg)
{
    Boundaries *boundaries = (Boundaries *)self;
    Py_VISIT(boundaries->pools);
    Py_VISIT(boundaries->clock);
    for (int device = 0; device < boundaries->devices; device++)
        Py_VISIT(boundaries->native[device]);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
boundaries_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Boundaries *boundaries = (Boundaries *)self;
    PyObject_GC_UnTrack(self);
    boundaries_clear(self);
    PyMem_Free(boundaries->slots);
    PyMem_Free(boundaries->edges);
    PyMem_Free(boundaries->inputs);
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
        if (!(boundaries->native[device] = native_events_of(PyTuple_GetItem(pools, device))))
            return -1;
        boundaries->devices = device + 1;
    }
    boundaries->share_ns = share;
    boundaries->share_data_ns = share_data;
    boundaries->clock = clock == state.perf_counter ? NULL : owned(clock);
    boundaries->last = -1;
    return 0;
}

/* -1 with an exception set; no reading is negative. */
static int64_t
host_time(Boundaries *boundaries)
{
    if (!boundaries->clock)
        return now_ns();
    PyObject *reading = PyObject_CallFunctionObjArgs(boundaries->clock, NULL);
    int64_t moment = reading ? PyLong_AsLongLong(reading) : -1;
    Py_XDECREF(reading);
    return moment;
}

static int
record_boundary(Boundaries *boundaries)
{
    int32_t slots[MOST_DEVICES];
    int devices = boundaries->devices;
    for (int device = 0; device < devices; device++) {
        PyObject *native = owned(boundaries->native[device]);
        int ask = native == Py_None ? 1 : native_record((NativeEvents *)native, &slots[device]);
        Py_DECREF(native);
        if (ask < 0) {
            /* The pool tries again, as after an event that it could not record itself. */
            if (!PyErr_ExceptionMatches(PyExc_Exception))
                return -1;
            PyErr_Clear();
            ask = 1;
        }
        if (ask && boundaries->devices == devices) {
            PyObject *pool = owned(PyTuple_GetItem(boundaries->pools, device));
            PyObject *slot = PyObject_CallMethodObjArgs(pool, state.str_record, NULL);
            Py_DECREF(pool);
            if (!slot)
                return -1;
            slots[device] = (int32_t)PyLong_AsLong(slot);
            Py_DECREF(slot);
            if (slots[device] == -1 && PyErr_Occurred())
                return -1;
        }
        /* Python has run, and another thread may have ended the request. */
        if (boundaries->devices != devices)
            return 0;
    }
    Py_ssize_t needed = ((Py_ssize_t)boundaries->last + 2) * devices;
    if (needed > boundaries->slots_capacity) {
        Py_ssize_t capacity = needed < 64 ? 128 : 2 * needed;
        int32_t *larger = PyMem_Realloc(boundaries->slots, (size_t)capacity * sizeof(int32_t));
        if (!larger) {
            PyErr_NoMemory();
            return -1;
        }
        boundaries->slots = larger;
        boundaries->slots_capacity = capacity;
    }
    boundaries->last++;
    for (int device = 0; device < devices; device++)
        boundaries->slots[(Py_ssize_t)boundaries->last * devices + device] = slots[device];
    boundaries->recorded = host_time(boundaries);
    return boundaries->recorded < 0 && PyErr_Occurred() ? -1 : 0;
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
    return Py_TYPE(object) == state.tensor ? PyWeakref_NewRef(object, NULL) : NULL;
}

static int
add_edge(Boundaries *boundaries, int64_t number)
{
    if (boundaries->count == boundaries->edges_capacity) {
        Py_ssize_t capacity = boundaries->edges_capacity ? 2 * boundaries->edges_capacity : 256;
        Edge *larger = PyMem_Realloc(boundaries->edges, (size_t)capacity * sizeof(Edge));
        if (!larger) {
            PyErr_NoMemory();
            return -1;
        }
        boundaries->edges = larger;
        boundaries->edges_capacity = capacity;
    }
    boundaries->edges[boundaries->count++] = (Edge){(int32_t)number, (int32_t)boundaries->last};
    return 0;
}

int
enter_boundary(Boundaries *boundaries, int64_t number, PyObject *input, int64_t moment, int inner)
{
    if (!moment && (moment = host_time(boundaries)) < 0 && PyErr_Occurred())
        return -1;
    int64_t apart = moment - boundaries->recorded;
    if (apart >= boundaries->share_ns
        && (apart >= boundaries->share_data_ns || Py_TYPE(input) != state.tensor
            || (!is_of(boundaries->output, input) && !(boundaries->open && is_of(boundaries->inputs[boundaries->open - 1], input))))
        && record_boundary(boundaries) < 0)
        return -1;
    Py_CLEAR(boundaries->output);
    if (inner) {
        PyObject *reference = reference_to(input);
        if (!reference && PyErr_Occurred())
            return -1;
        if (boundaries->open == boundaries->inputs_capacity) {
            Py_ssize_t capacity = boundaries->inputs_capacity ? 2 * boundaries->inputs_capacity : 16;
            PyObject **larger = PyMem_Realloc(boundaries->inputs, (size_t)capacity * sizeof(PyObject *));
            if (!larger) {
                Py_XDECREF(reference);
                PyErr_NoMemory();
                return -1;
            }
            boundaries->inputs = larger;
            boundaries->inputs_capacity = capacity;
        }
        boundaries->inputs[boundaries->open++] = reference;
    }
    return add_edge(boundaries, number);
}

int
leave_boundary(Boundaries *boundaries, int64_t number, PyObject *output, int64_t moment, int inner)
{
    if (!moment && (moment = host_time(boundaries)) < 0 && PyErr_Occurred())
        return -1;
    int64_t apart = moment - boundaries->recorded;
    if (Py_TYPE(output) == &PyTuple_Type && PyTuple_Size(output) > 0)
        output = PyTuple_GetItem(output, 0);
    /* A module that returns its input without having called a submodule has changed it in place. */
    if (apart >= boundaries->share_ns && (apart >= boundaries->share_data_ns || output == Py_None || !is_of(boundaries->output, output))
        && record_boundary(boundaries) < 0)
        return -1;
    PyObject *reference = reference_to(output), *before = boundaries->output;
    if (!reference && PyErr_Occurred())
        return -1;
    boundaries->output = reference;
    Py_XDECREF(before);
    if (inner && boundaries->open > 0) {
        before = boundaries->inputs[--boundaries->open];
        Py_XDECREF(before);
    }
    return add_edge(boundaries, ~number);
}

static PyObject *
parse_boundary(PyObject *self, PyObject *args, PyObject *kwargs, int (*act)(Boundaries *, int64_t, PyObject *, int64_t, int))
{
    static char *names[] = {"number", "tensor", "now", "inner", NULL};
    PyObject *passed = Py_None;
    long long number, moment = 0;
    int inner = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|OL$p", names, &number, &passed, &moment, &inner))
        return NULL;
    if (number < 0 || number >= INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "a call has no such number");
        return NULL;
    }
    if (act((Boundaries *)self, number, passed, moment, inner) < 0)
        return NULL;
    return owned(Py_None);
}

static PyObject *
boundaries_enter(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return parse_boundary(self, args, kwargs, enter_boundary);
}

static PyObject *
boundaries_leave(PyObject *self, PyObject *args, PyObject *kwargs)
{
    return parse_boundary(self, args, kwargs, leave_boundary);
}

static PyObject *
boundaries_record(PyObject *self, PyObject *unused)
{
    return record_boundary((Boundaries *)self) < 0 ? NULL : owned(Py_None);
}

static PyObject *
boundaries_cut(PyObject *self, PyObject *unused)
{
    Boundaries *boundaries = (Boundaries *)self;
    BoundaryEvents *events = PyObject_New(BoundaryEvents, state.boundary_events_type);
    if (!events)
        return NULL;
    events->devices = boundaries->devices;
    events->slots = boundaries->slots;
    events->boundaries = boundaries->devices ? boundaries->last + 1 : 0;
    events->edges = boundaries->edges;
    events->count = boundaries->count;
    boundaries->slots = NULL;
    boundaries->edges = NULL;
    boundaries->slots_capacity = boundaries->edges_capacity = boundaries->count = 0;
    boundaries->last = -1;
    boundaries->recorded = 0;
    forget_tensors(boundaries);
    return (PyObject *)events;
}

static PyObject *
boundaries_forget(PyObject *self, PyObject *unused)
{
    Boundaries *boundaries = (Boundaries *)self;
    int devices = boundaries->devices;
    PyObject *before = boundaries->pools;
    boundaries->pools = owned(state.empty);
    boundaries->devices = 0;
    for (int device = 0; device < devices; device++)
        Py_CLEAR(boundaries->native[device]);
    Py_XDECREF(before);
    boundaries->last = -1;
    boundaries->recorded = 0;
    boundaries->count = 0;
    forget_tensors(boundaries);
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

PyType_Spec boundaries_spec = {"inferspan.capture.modules._recorder.Boundaries", sizeof(Boundaries), 0,
                                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, boundaries_slots};
