/* ModuleCaller: calls a module as torch would, and records the call. call_log.ModuleCaller is its counterpart in Python. */
#include "recorder.h"

int
take_module(ModuleCaller *caller, PyObject *module)
{
    PyObject *inner = PyObject_GetAttr(module, state.str_modules);
    int truth = inner ? PyObject_IsTrue(inner) : -1;
    Py_XDECREF(inner);
    if (truth < 0)
        return -1;
    caller->inner = (char)truth;
    caller->module = owned(module);
    return 0;
}

static int
caller_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"module", "info", "engine", NULL};
    ModuleCaller *caller = (ModuleCaller *)self;
    PyObject *module, *info, *engine;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO:ModuleCaller", names, &module, &info, &engine))
        return -1;
    if (!state.current) {
        PyErr_SetString(PyExc_RuntimeError, "bind() comes first");
        return -1;
    }
    if (caller->module) {
        PyErr_SetString(PyExc_TypeError, "ModuleCaller() is made once");
        return -1;
    }
    if (take_module(caller, module) < 0)
        return -1;
    caller->records = 1;
    caller->number = -1;
    caller->stage = (char)is_stage(info);
    caller->info = owned(info);
    caller->engine = owned(engine);
    caller->inputs.known = owned(state.empty);
    caller->outputs.known = owned(state.empty);
    caller->inputs.length = caller->outputs.length = UNKNOWN_KEY;
    return 0;
}

static int
caller_clear(PyObject *self)
{
    ModuleCaller *caller = (ModuleCaller *)self;
    Py_CLEAR(caller->module);
    Py_CLEAR(caller->info);
    Py_CLEAR(caller->engine);
    Py_CLEAR(caller->watch);
    forget_description(&caller->inputs);
    forget_description(&caller->outputs);
    return 0;
}

static int
caller_traverse(PyObject *self, visitproc visit, void *arg)
{
    ModuleCaller *caller = (ModuleCaller *)self;
    Py_VISIT(caller->module);
    Py_VISIT(caller->info);
    Py_VISIT(caller->engine);
    Py_VISIT(caller->watch);
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

static PyObject *
first_of(PyObject *args, PyObject *kwargs)
{
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (PyTuple_Size(args) > 0)
        return PyTuple_GetItem(args, 0);
    return kwargs && PyDict_Next(kwargs, &position, &key, &value) ? value : Py_None;
}

/* Whether the frame that was pushed as `serial` is, or now becomes, the innermost open one: 1 or 0. */
static int
is_innermost(CallLog *log, uint64_t serial, PyObject *info, int64_t moment)
{
    if (log->open > 0 && log->frames[log->open - 1].serial == serial)
        return 1;
    return reach(log, info, moment, state.str_other);
}

static void
drop_frame(CallLog *log)
{
    const Frame *frame = &log->frames[--log->open];
    PyObject *info = frame->info, *inputs = frame->inputs;
    Py_DECREF(info);
    Py_DECREF(inputs);
}

/* The observers have been taken off in the middle of the call: of calls inside that still look open, nobody has seen the end. */
static void
forget_inside(CallLog *log, uint64_t serial)
{
    Py_ssize_t place = log->open;
    while (place > 0 && log->frames[place - 1].serial != serial)
        place--;
    while (place && log->open > place)
        drop_frame(log);
}

/* Look at an output: 1 if it is kept, 0 if Python has looked at it or nothing has to, -1 if that raised. */
static int
watch_output(CallLog *log, ModuleCaller *caller, PyObject *args, PyObject *output, int32_t row)
{
    if (!caller->watch || caller->watch == Py_None)
        return 0;
    PyObject *keeper = log->keeper;
    Py_XINCREF(keeper);
    int kept = keep_output(keeper, output, caller->number, row);
    Py_XDECREF(keeper);
    if (kept)
        return 1;
    PyObject *watch = owned(caller->watch), *seen = PyObject_CallFunctionObjArgs(watch, caller->module, args, output, NULL);
    Py_DECREF(watch);
    Py_XDECREF(seen);
    return seen ? 0 : -1;
}

static int
record_return(CallLog *log, ModuleCaller *caller, uint64_t serial, Boundaries *boundaries, PyObject *output, int64_t moment, int kept)
{
    if (!caller->attached)
        forget_inside(log, serial);
    int innermost = is_innermost(log, serial, caller->info, moment);
    if (innermost <= 0)
        return innermost;
    int64_t slot = -1;
    PyObject *statistics = NULL, *outputs = NULL;
    PyObject *collector = kept ? Py_None : log->output_stats;
    Py_XINCREF(collector);
    serial = log->frames[log->open - 1].serial;
    if (boundaries && leave_boundary(boundaries, log->frames[log->open - 1].number, output, moment, caller->inner) < 0)
        goto failure;
    if (Py_TYPE(output) == state.tensor || Py_TYPE(output) == &PyTuple_Type)
        outputs = describe_like(&caller->outputs, output, NULL);
    else if (PyDict_Check(output))
        outputs = describe_like(&caller->outputs, state.empty, output);
    else
        outputs = PyObject_CallFunctionObjArgs(state.describe, output, NULL);
    if (!outputs)
        goto failure;
    if (collector && collector != Py_None) {
        statistics = PyObject_CallMethodObjArgs(collector, state.str_append, output, caller->info, NULL);
        if (!statistics)
            goto failure;
        if (statistics != Py_None && (slot = PyLong_AsLongLong(statistics)) == -1 && PyErr_Occurred())
            goto failure;
    }
    /* Python has run: another thread may have ended the request. */
    innermost = log->open > 0 && log->frames[log->open - 1].serial == serial ? pop_frame(log, moment, outputs, NULL, slot) : 0;
    Py_DECREF(outputs);
    Py_XDECREF(statistics);
    Py_XDECREF(collector);
    return innermost;

failure:
    /* A call that cannot be described is not recorded: its frame is dropped, as in Python. */
    if (log->open > 0 && log->frames[log->open - 1].serial == serial)
        drop_frame(log);
    Py_XDECREF(outputs);
    Py_XDECREF(statistics);
    Py_XDECREF(collector);
    return -1;
}

/* Record a call that an exception ends. The exception stays set, unless one of ours that may not be contained replaces it. */
static void
record_failure(CallLog *log, ModuleCaller *caller, uint64_t serial)
{
    PyObject *type, *value, *trace;
    int64_t moment = now_ns();
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *name = PyObject_CallFunctionObjArgs(state.error_type, value, NULL);
    int done = name ? is_innermost(log, serial, caller->info, moment) : -1;
    if (done > 0)
        done = pop_frame(log, moment, state.empty, name, -1);
    Py_XDECREF(name);
    if (done < 0 && contained() < 0) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return;
    }
    PyErr_Restore(type, value, trace);
}

/* A call of a module of this log that is not recorded. */
static PyObject *
watched_call(ModuleCaller *caller, CallLog *log, PyObject *forward, PyObject *args, PyObject *kwargs)
{
    PyObject *output = PyObject_Call(forward, args, kwargs);
    if (output && watch_output(log, caller, args, output, -1) < 0)
        Py_CLEAR(output);
    return output;
}

static PyObject *
recorded_call(ModuleCaller *caller, CallLog *log, PyObject *forward, PyObject *args, PyObject *kwargs)
{
    PyObject *inputs = NULL;
    Boundaries *boundaries = NULL;
    Py_ssize_t named = kwargs ? PyDict_Size(kwargs) : 0;
    if (!named && PyTuple_Size(args) == 1 && Py_TYPE(PyTuple_GetItem(args, 0)) == state.tensor)
        inputs = describe_like(&caller->inputs, PyTuple_GetItem(args, 0), NULL);
    else
        inputs = describe_like(&caller->inputs, args, named ? kwargs : NULL);
    int64_t moment = now_ns();
    int begun = inputs ? push_frame(log, caller->info, inputs, moment, caller->stage) : -1;
    Py_XDECREF(inputs);
    if (begun < 0)
        return contained() < 0 ? NULL : watched_call(caller, log, forward, args, kwargs);
    uint64_t serial = log->frames[log->open - 1].serial;
    int32_t number = log->frames[log->open - 1].number;
    if (log->clock && PyObject_TypeCheck(log->clock, state.boundaries_type))
        boundaries = (Boundaries *)owned(log->clock);
    if (boundaries && enter_boundary(boundaries, number, first_of(args, kwargs), moment, caller->inner) < 0 && contained() < 0) {
        Py_DECREF(boundaries);
        return NULL;
    }
    PyObject *output = PyObject_Call(forward, args, kwargs);
    int kept = 0;
    moment = now_ns();
    if (output && (kept = watch_output(log, caller, args, output, number)) < 0)
        Py_CLEAR(output);
    if (!output)
        record_failure(log, caller, serial);
    else if (record_return(log, caller, serial, boundaries, output, moment, kept) < 0 && contained() < 0)
        Py_CLEAR(output);
    Py_XDECREF(boundaries);
    return output;
}

/* References to a caller that is called: by the module's dictionary and by ModuleObservers. To the dictionary: by the module and by call_module. */
enum { CALLER_OWNERS = 2, DICTIONARY_OWNERS = 2 };

static PyObject *
call_module(PyObject *self, PyObject *args, PyObject *kwargs)
{
    ModuleCaller *caller = (ModuleCaller *)self;
    PyObject *own = PyObject_GenericGetDict(caller->module, NULL);
    if (!own)
        return NULL;
    /* Another module may have this caller in a copy of the dictionary, or share the dictionary. Python 3.14 has flags in the upper half. */
    if (!caller->attached || (uint32_t)Py_REFCNT(self) != CALLER_OWNERS + caller->running || (uint32_t)Py_REFCNT(own) != DICTIONARY_OWNERS) {
        PyObject *instead = PyObject_CallMethodObjArgs(self, state.str_instead, NULL);
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
    PyObject *forward = plain < 0 ? NULL : PyObject_GetAttr(caller->module, plain == PLAIN ? state.str_forward : state.str_call_impl);
    PyObject *output = NULL, *call = forward ? PyObject_GetAttr(state.current, state.str_call) : NULL;
    if (call) {
        CallLog *log = (CallLog *)call;
        if (plain == TRACED || !PyObject_TypeCheck(call, state.call_log_type) || log->engine != caller->engine)
            output = PyObject_Call(forward, args, kwargs);
        else if (!caller->records)
            output = watched_call(caller, log, forward, args, kwargs);
        else if ((caller->stage ? log->stages_left : log->calls_left) <= 0) {
            if (caller->stage)
                log->stages_left--;
            else
                log->missed++;
            output = watched_call(caller, log, forward, args, kwargs);
        }
        else
            output = recorded_call(caller, log, forward, args, kwargs);
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

/* Between two uses it must not keep the module alive, but what it knows of inputs and outputs is worth keeping. */
static PyObject *
caller_release_module(PyObject *self, PyObject *unused)
{
    (void)unused;
    ModuleCaller *caller = (ModuleCaller *)self;
    if (caller->running || !caller->module)
        Py_RETURN_FALSE;
    Py_CLEAR(caller->module);
    Py_RETURN_TRUE;
}

static PyObject *
caller_take_module(PyObject *self, PyObject *module)
{
    ModuleCaller *caller = (ModuleCaller *)self;
    if (caller->module || !caller->info) {
        PyErr_SetString(PyExc_TypeError, "only a caller that has released its module takes one");
        return NULL;
    }
    return take_module(caller, module) < 0 ? NULL : owned(Py_None);
}

static PyMethodDef caller_methods[] = {
    {"release_module", caller_release_module, METH_NOARGS, NULL},
    {"take_module", caller_take_module, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef caller_members[] = {
    {"module", T_OBJECT, offsetof(ModuleCaller, module), READONLY, NULL},
    {"info", T_OBJECT, offsetof(ModuleCaller, info), READONLY, NULL},
    {"engine", T_OBJECT, offsetof(ModuleCaller, engine), READONLY, NULL},
    {"attached", T_BOOL, offsetof(ModuleCaller, attached), 0, NULL},
    {"records", T_BOOL, offsetof(ModuleCaller, records), 0, NULL},
    {"watch", T_OBJECT, offsetof(ModuleCaller, watch), 0, NULL},
    {"number", T_INT, offsetof(ModuleCaller, number), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot caller_slots[] = {
    {Py_tp_doc, (void *)"See call_log.ModuleCaller."},
    {Py_tp_call, caller_call},
    {Py_tp_init, caller_init},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, caller_dealloc},
    {Py_tp_traverse, caller_traverse},
    {Py_tp_clear, caller_clear},
    {Py_tp_members, caller_members},
    {Py_tp_methods, caller_methods},
    {0, NULL},
};

PyType_Spec caller_spec = {"inferspan.capture.modules._recorder.ModuleCaller", sizeof(ModuleCaller), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, caller_slots};
