/* CallLog: the running and ended module calls of one request. call_log.CallLog is its counterpart in Python. */
#include "recorder.h"

static PyObject *
log_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    CallLog *log = (CallLog *)allocate(type, 0);
    if (!log)
        return NULL;
    log->engine = owned(Py_None);
    log->clock = owned(Py_None);
    log->output_stats = owned(Py_None);
    log->keeper = owned(Py_None);
    return (PyObject *)log;
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
forget_calls(CallLog *log)
{
    Frame *frames = log->frames;
    Row *rows = log->rows;
    Py_ssize_t open = log->open, recorded = log->recorded;
    log->frames = NULL;
    log->rows = NULL;
    log->open = log->frames_capacity = log->recorded = log->rows_capacity = 0;
    drop_frames(frames, open);
    drop_rows(rows, recorded);
}

static int
log_clear(PyObject *self)
{
    CallLog *log = (CallLog *)self;
    Py_CLEAR(log->engine);
    Py_CLEAR(log->clock);
    Py_CLEAR(log->output_stats);
    Py_CLEAR(log->keeper);
    forget_calls(log);
    return 0;
}

static int
log_traverse(PyObject *self, visitproc visit, void *arg)
{
    CallLog *log = (CallLog *)self;
    /* The objects in rows are shared, and none of them refers to a log. */
    Py_VISIT(log->engine);
    Py_VISIT(log->clock);
    Py_VISIT(log->output_stats);
    Py_VISIT(log->keeper);
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
log_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    log_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

int
is_stage(PyObject *info)
{
    PyObject *stage = PyObject_GetAttr(info, state.str_stage);
    if (!stage)
        PyErr_Clear();
    int found = stage && stage != Py_None;
    Py_XDECREF(stage);
    return found;
}

int
push_frame(CallLog *log, PyObject *info, PyObject *inputs, int64_t moment, int stage)
{
    if (log->open == log->frames_capacity) {
        Py_ssize_t capacity = log->frames_capacity ? 2 * log->frames_capacity : 16;
        Frame *frames = PyMem_Realloc(log->frames, (size_t)capacity * sizeof(Frame));
        if (!frames) {
            PyErr_NoMemory();
            return -1;
        }
        log->frames = frames;
        log->frames_capacity = capacity;
    }
    Frame *frame = &log->frames[log->open++];
    frame->number = (int32_t)log->count++;
    frame->serial = ++log->serial;
    frame->info = owned(info);
    frame->inputs = owned(inputs);
    frame->start = moment;
    if (stage)
        log->stages_left--;
    else
        log->calls_left--;
    return 0;
}

int
pop_frame(CallLog *log, int64_t moment, PyObject *outputs, PyObject *failure, int64_t statistics)
{
    if (log->recorded == log->rows_capacity) {
        Py_ssize_t capacity = log->rows_capacity ? 2 * log->rows_capacity : log->usual > 64 ? log->usual : 64;
        Row *rows = PyMem_Realloc(log->rows, (size_t)capacity * sizeof(Row));
        if (!rows) {
            PyErr_NoMemory();
            return -1;
        }
        log->rows = rows;
        log->rows_capacity = capacity;
    }
    const Frame *frame = &log->frames[--log->open];
    Row *row = &log->rows[log->recorded++];
    row->number = frame->number;
    row->parent = log->open ? frame[-1].number : -1;
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

int
reach(CallLog *log, PyObject *info, int64_t moment, PyObject *failure)
{
    Py_ssize_t place = log->open;
    while (place > 0 && log->frames[place - 1].info != info)
        place--;
    if (place == 0)
        return 0;
    while (log->open > place)
        if (pop_frame(log, moment, state.empty, failure, -1) < 0)
            return -1;
    return 1;
}

static PyObject *
log_enter(PyObject *self, PyObject *args)
{
    CallLog *log = (CallLog *)self;
    PyObject *info, *inputs;
    long long moment;
    if (!PyArg_ParseTuple(args, "OOL:enter", &info, &inputs, &moment) || push_frame(log, info, inputs, moment, is_stage(info)) < 0)
        return NULL;
    return PyLong_FromLong(log->frames[log->open - 1].number);
}

static PyObject *
log_reach(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"info", "now", "failure", NULL};
    CallLog *log = (CallLog *)self;
    PyObject *info, *failure = state.str_other;
    long long moment;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OL|U:reach", names, &info, &moment, &failure))
        return NULL;
    int found = reach(log, info, moment, failure);
    return found < 0 ? NULL : PyLong_FromLong(found ? log->frames[log->open - 1].number : -1);
}

static PyObject *
log_leave(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"now", "outputs", "failure", "statistics", NULL};
    CallLog *log = (CallLog *)self;
    PyObject *outputs = state.empty, *failure = Py_None, *statistics = Py_None;
    long long moment, slot = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L|OOO:leave", names, &moment, &outputs, &failure, &statistics))
        return NULL;
    if (statistics != Py_None && (slot = PyLong_AsLongLong(statistics)) == -1 && PyErr_Occurred())
        return NULL;
    if (log->open == 0) {
        PyErr_SetString(PyExc_IndexError, "no module call is open");
        return NULL;
    }
    if (pop_frame(log, moment, outputs, failure == Py_None ? NULL : failure, slot) < 0)
        return NULL;
    return owned(Py_None);
}

static PyObject *
log_begun_before(PyObject *self, PyObject *moment)
{
    CallLog *log = (CallLog *)self;
    long long limit = PyLong_AsLongLong(moment);
    if (limit == -1 && PyErr_Occurred())
        return NULL;
    for (Py_ssize_t place = 0; place < log->recorded; place++)
        if (log->rows[place].start < limit)
            return PyBool_FromLong(1);
    return PyBool_FromLong(0);
}

static PyObject *
log_cut(PyObject *self, PyObject *unused)
{
    CallLog *log = (CallLog *)self;
    Calls *calls = PyObject_New(Calls, state.calls_type);
    if (!calls)
        return NULL;
    calls->count = log->usual = log->recorded;
    calls->rows = log->rows;
    if (log->recorded < log->rows_capacity / 2) {
        /* The calls may be kept for long. */
        Row *rows = PyMem_Realloc(log->rows, (size_t)(log->recorded ? log->recorded : 1) * sizeof(Row));
        calls->rows = rows ? rows : log->rows;
    }
    log->rows = NULL;
    log->recorded = log->rows_capacity = 0;
    return (PyObject *)calls;
}

static PyObject *
log_discard(PyObject *self, PyObject *unused)
{
    forget_calls((CallLog *)self);
    return owned(Py_None);
}

static PyMemberDef log_members[] = {
    {"calls_left", T_PYSSIZET, offsetof(CallLog, calls_left), 0, NULL},
    {"stages_left", T_PYSSIZET, offsetof(CallLog, stages_left), 0, NULL},
    {"missed", T_PYSSIZET, offsetof(CallLog, missed), 0, NULL},
    {"count", T_PYSSIZET, offsetof(CallLog, count), 0, NULL},
    {"engine", T_OBJECT, offsetof(CallLog, engine), 0, NULL},
    {"clock", T_OBJECT, offsetof(CallLog, clock), 0, NULL},
    {"output_stats", T_OBJECT, offsetof(CallLog, output_stats), 0, NULL},
    {"keeper", T_OBJECT, offsetof(CallLog, keeper), 0, NULL},
    {"open_calls", T_PYSSIZET, offsetof(CallLog, open), READONLY, NULL},
    {"recorded", T_PYSSIZET, offsetof(CallLog, recorded), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef log_methods[] = {
    {"enter", log_enter, METH_VARARGS, NULL},
    {"reach", (PyCFunction)(void (*)(void))log_reach, METH_VARARGS | METH_KEYWORDS, NULL},
    {"leave", (PyCFunction)(void (*)(void))log_leave, METH_VARARGS | METH_KEYWORDS, NULL},
    {"begun_before", log_begun_before, METH_O, NULL},
    {"cut", log_cut, METH_NOARGS, NULL},
    {"discard", log_discard, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot log_slots[] = {
    {Py_tp_doc, (void *)"See call_log.CallLog."},
    {Py_tp_new, log_new},
    {Py_tp_dealloc, log_dealloc},
    {Py_tp_traverse, log_traverse},
    {Py_tp_clear, log_clear},
    {Py_tp_members, log_members},
    {Py_tp_methods, log_methods},
    {0, NULL},
};

PyType_Spec call_log_spec = {
    "inferspan.capture.modules._recorder.CallLog", sizeof(CallLog), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, log_slots};
