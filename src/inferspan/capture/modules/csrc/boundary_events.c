/* BoundaryEvents: the boundaries of one pass, and the times between them. boundaries.BoundaryEvents is its counterpart in Python. */
#include "recorder.h"

static void
events_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((BoundaryEvents *)self)->slots);
    PyMem_Free(((BoundaryEvents *)self)->edges);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *
events_slots_of(PyObject *self, PyObject *which)
{
    BoundaryEvents *events = (BoundaryEvents *)self;
    long device = PyLong_AsLong(which);
    if (device == -1 && PyErr_Occurred())
        return NULL;
    if (device < 0 || device >= events->devices) {
        PyErr_SetString(PyExc_IndexError, "there is no such device");
        return NULL;
    }
    PyObject *slots = PyList_New(events->boundaries);
    for (Py_ssize_t place = 0; slots && place < events->boundaries; place++) {
        PyObject *slot = PyLong_FromLong(events->slots[place * events->devices + device]);
        if (!slot || PyList_SetItem(slots, place, slot) < 0)
            Py_CLEAR(slots);
    }
    return slots;
}

typedef struct {
    int32_t number, begin, end;
    double seconds;
} Interval;

/* The calls with both boundaries, the pass itself first, and their count. The caller frees `*found`. */
static Py_ssize_t
pair_edges(const BoundaryEvents *events, Py_ssize_t begin, Py_ssize_t end, Interval **found)
{
    /* Calls are numbered from 0 on, and each begins once. */
    Py_ssize_t most = 0;
    for (Py_ssize_t place = 0; place < events->count; place++)
        if (events->edges[place].number >= most)
            most = (Py_ssize_t)events->edges[place].number + 1;
    int32_t *begun = PyMem_Malloc(((size_t)most + 1) * sizeof(int32_t));
    Interval *intervals = PyMem_Malloc(((size_t)events->count + 1) * sizeof(Interval));
    if (!begun || !intervals) {
        PyMem_Free(begun);
        PyMem_Free(intervals);
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t count = 0;
    memset(begun, 0xff, ((size_t)most + 1) * sizeof(int32_t));
    if (begin >= 0)
        intervals[count++] = (Interval){-1, (int32_t)begin, (int32_t)end, 0};
    for (Py_ssize_t place = 0; place < events->count; place++) {
        Edge edge = events->edges[place];
        if (edge.number >= 0)
            begun[edge.number] = edge.boundary;
        else if (~edge.number < most && begun[~edge.number] >= 0) {
            intervals[count++] = (Interval){~edge.number, begun[~edge.number], edge.boundary, 0};
            begun[~edge.number] = -1;
        }
    }
    PyMem_Free(begun);
    *found = intervals;
    return count;
}

/* The slot of a boundary; NOTHING if it has none. */
static int32_t
slot_of(const BoundaryEvents *events, int32_t boundary, int device)
{
    return boundary >= 0 && boundary < events->boundaries ? events->slots[(Py_ssize_t)boundary * events->devices + device] : NOTHING;
}

/* 1 with the seconds of all intervals on one device, 0 if the device has not reached them, 2 if the driver refuses. */
static int
read_intervals(const BoundaryEvents *events, int device, NativeEvents *native, Interval *intervals, Py_ssize_t count)
{
    for (Py_ssize_t place = 0; place < count; place++) {
        double seconds = Py_NAN;
        int32_t begin = slot_of(events, intervals[place].begin, device), end = slot_of(events, intervals[place].end, device);
        if (begin >= 0 && begin == end)
            seconds = 0;
        else if (begin >= 0 && end >= 0) {
            float milliseconds = 0;
            PyObject *first = PyList_GetItem(native->handles, begin), *second = PyList_GetItem(native->handles, end);
            void *from = first ? PyLong_AsVoidPtr(first) : NULL, *to = second ? PyLong_AsVoidPtr(second) : NULL;
            if (PyErr_Occurred())
                return -1;
            int status = native->elapsed(&milliseconds, from, to);
            if (status == NOT_READY)
                return 0;
            if (status != SUCCESS)
                return 2;
            seconds = milliseconds * 1e-3;
        }
        /* The longest time counts; it is not a number if one of them is unknown. */
        if (device == 0 || intervals[place].seconds < seconds || seconds != seconds)
            intervals[place].seconds = seconds;
    }
    return 1;
}

/* The same through the pool, in Python. */
static int
ask_pool(const BoundaryEvents *events, int device, PyObject *pool, Interval *intervals, Py_ssize_t count)
{
    PyObject *begins = PyList_New(count), *ends = PyList_New(count), *found = NULL;
    int known = -1;
    for (Py_ssize_t place = 0; begins && ends && place < count; place++) {
        PyObject *first = PyLong_FromLong(slot_of(events, intervals[place].begin, device));
        PyObject *second = PyLong_FromLong(slot_of(events, intervals[place].end, device));
        if (!first || !second || PyList_SetItem(begins, place, first) < 0 || PyList_SetItem(ends, place, second) < 0)
            goto done;
    }
    if (begins && ends)
        found = PyObject_CallMethodObjArgs(pool, state.str_seconds, begins, ends, NULL);
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
            if (device == 0 || intervals[place].seconds < seconds || seconds != seconds)
                intervals[place].seconds = seconds;
        }
    }
    else if (found)
        PyErr_SetString(PyExc_TypeError, "a pool has not returned a list of as many times");
done:
    Py_XDECREF(begins);
    Py_XDECREF(ends);
    Py_XDECREF(found);
    return known;
}

static PyObject *
events_seconds(PyObject *self, PyObject *args)
{
    BoundaryEvents *events = (BoundaryEvents *)self;
    PyObject *pools, *times = NULL;
    Py_ssize_t begin, end;
    Interval *intervals = NULL;
    if (!PyArg_ParseTuple(args, "O!nn:seconds", &PyTuple_Type, &pools, &begin, &end))
        return NULL;
    if (PyTuple_Size(pools) != events->devices || begin >= events->boundaries || (begin >= 0 && (end < 0 || end >= events->boundaries))) {
        PyErr_SetString(PyExc_ValueError, "these boundaries are not of these devices, or do not exist");
        return NULL;
    }
    Py_ssize_t count = pair_edges(events, begin, end, &intervals);
    if (count < 0)
        return NULL;
    for (int device = 0; device < events->devices; device++) {
        PyObject *pool = PyTuple_GetItem(pools, device), *native = native_events_of(pool);
        int known = native ? 2 : -1;
        if (native && native != Py_None && ((NativeEvents *)native)->enabled && ((NativeEvents *)native)->handles)
            known = read_intervals(events, device, (NativeEvents *)native, intervals, count);
        Py_XDECREF(native);
        if (known == 2)
            known = ask_pool(events, device, pool, intervals, count);
        if (known <= 0) {
            if (known == 0)
                times = owned(Py_None);
            goto done;
        }
    }
    times = PyDict_New();
    for (Py_ssize_t place = 0; times && place < count; place++) {
        /* Boundaries on two streams that nothing orders can be the wrong way round, and some are missing. */
        if (!(intervals[place].seconds >= 0))
            continue;
        PyObject *number = PyLong_FromLong(intervals[place].number), *seconds = PyFloat_FromDouble(intervals[place].seconds);
        if (!number || !seconds || PyDict_SetItem(times, number, seconds) < 0)
            Py_CLEAR(times);
        Py_XDECREF(number);
        Py_XDECREF(seconds);
    }
done:
    PyMem_Free(intervals);
    return times;
}

static PyMemberDef events_members[] = {
    {"count", T_PYSSIZET, offsetof(BoundaryEvents, boundaries), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef events_methods[] = {
    {"slots", events_slots_of, METH_O, NULL},
    {"seconds", events_seconds, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot events_slots[] = {
    {Py_tp_doc, (void *)"See boundaries.BoundaryEvents."},
    {Py_tp_dealloc, events_dealloc},
    {Py_tp_members, events_members},
    {Py_tp_methods, events_methods},
    {0, NULL},
};

PyType_Spec boundary_events_spec = {"inferspan.capture.modules._recorder.BoundaryEvents", sizeof(BoundaryEvents), 0, Py_TPFLAGS_DEFAULT, events_slots};
