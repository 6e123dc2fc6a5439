/* NativeEvents: records and reads the events of one device by the driver's functions, as events.DriverEvents does in Python. */
#include "recorder.h"

static int
native_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"free", "handles", "stream", "capturing", "device", "index", "record", "elapsed", "several", NULL};
    NativeEvents *native = (NativeEvents *)self;
    PyObject *given[6];
    unsigned long long record, elapsed;
    int several;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOKKp:NativeEvents", names, &given[0], &given[1], &given[2], &given[3], &given[4],
                                     &given[5], &record, &elapsed, &several))
        return -1;
    if (native->free || !PyList_Check(given[0]) || !PyList_Check(given[1]) || !record || !elapsed) {
        PyErr_SetString(PyExc_TypeError, "NativeEvents() is made once, of two lists and the addresses of two functions");
        return -1;
    }
    PyObject **places[] = {&native->free, &native->handles, &native->stream, &native->capturing, &native->device, &native->index};
    for (int place = 0; place < 6; place++)
        *places[place] = owned(given[place]);
    native->record = (RecordEvent)(uintptr_t)record;
    native->elapsed = (ElapsedTime)(uintptr_t)elapsed;
    native->several = (char)several;
    native->enabled = 1;
    return 0;
}

static int
native_clear(PyObject *self)
{
    NativeEvents *native = (NativeEvents *)self;
    native->enabled = 0;
    Py_CLEAR(native->free);
    Py_CLEAR(native->handles);
    Py_CLEAR(native->stream);
    Py_CLEAR(native->capturing);
    Py_CLEAR(native->device);
    Py_CLEAR(native->index);
    return 0;
}

static int
native_traverse(PyObject *self, visitproc visit, void *arg)
{
    NativeEvents *native = (NativeEvents *)self;
    Py_VISIT(native->free);
    Py_VISIT(native->handles);
    Py_VISIT(native->stream);
    Py_VISIT(native->capturing);
    Py_VISIT(native->device);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
native_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    native_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int
native_record(NativeEvents *native, int32_t *slot)
{
    PyObject *answer;
    if (!native->enabled || !native->free)
        return 1;
    if (native->several) {
        if (!(answer = PyObject_CallFunctionObjArgs(native->device, NULL)))
            return -1;
        int here = PyObject_RichCompareBool(answer, native->index, Py_EQ);
        Py_DECREF(answer);
        if (here <= 0)
            return here < 0 ? -1 : 1;
    }
    if (!(answer = PyObject_CallFunctionObjArgs(native->stream, native->index, NULL)))
        return -1;
    void *stream = PyLong_AsVoidPtr(answer);
    Py_DECREF(answer);
    if (!stream && PyErr_Occurred())
        return -1;
    /* The default stream, which has no handle, cannot capture. */
    if (stream) {
        if (!(answer = PyObject_CallFunctionObjArgs(native->capturing, NULL)))
            return -1;
        int captures = PyObject_IsTrue(answer);
        Py_DECREF(answer);
        if (captures) {
            *slot = NOTHING;
            return captures < 0 ? -1 : 0;
        }
    }
    Py_ssize_t left = PyList_Size(native->free);
    if (left <= 0)
        return 1;
    PyObject *taken = owned(PyList_GetItem(native->free, left - 1));
    if (PyList_SetSlice(native->free, left - 1, left, NULL) < 0) {
        Py_DECREF(taken);
        return -1;
    }
    long number = PyLong_AsLong(taken);
    PyObject *handle = number >= 0 ? PyList_GetItem(native->handles, number) : NULL;
    void *event = handle ? PyLong_AsVoidPtr(handle) : NULL;
    if (!event) {
        Py_DECREF(taken);
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "an event of the device clock has no handle");
        return -1;
    }
    int status;
    if (native->several) {
        /* A call that waits for a full queue must not keep out the threads that could empty it. */
        Py_BEGIN_ALLOW_THREADS
        status = native->record(event, stream);
        Py_END_ALLOW_THREADS
    }
    else
        status = native->record(event, stream);
    /* If the driver refuses, the pool tries again and reports it, in Python. */
    int back = status == SUCCESS ? 0 : PyList_Append(native->free, taken);
    Py_DECREF(taken);
    *slot = (int32_t)number;
    return back < 0 ? -1 : status != SUCCESS;
}

static PyMemberDef native_members[] = {
    {"enabled", T_BOOL, offsetof(NativeEvents, enabled), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot native_slots[] = {
    {Py_tp_doc, (void *)"Records and reads the events of one pool by the driver's functions; the pool handles every other case."},
    {Py_tp_init, native_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, native_dealloc},
    {Py_tp_traverse, native_traverse},
    {Py_tp_clear, native_clear},
    {Py_tp_members, native_members},
    {0, NULL},
};

PyType_Spec native_events_spec = {"inferspan.capture.modules._recorder.NativeEvents", sizeof(NativeEvents), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, native_slots};

PyObject *
native_events_of(PyObject *pool)
{
    PyObject *native = PyObject_GetAttr(pool, state.str_native);
    if (native && native != Py_None && Py_TYPE(native) != state.native_events_type) {
        Py_DECREF(native);
        PyErr_SetString(PyExc_TypeError, "the native events of a pool are of another class");
        return NULL;
    }
    return native;
}
