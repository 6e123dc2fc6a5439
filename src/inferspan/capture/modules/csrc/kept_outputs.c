/* KeptOutputs: outputs of modules on a device that are kept for a few passes, and counted together then; capture.values.kept uses it.
 *
 * Python decides whose outputs can be kept. In a call that is one reading of the clock and of the tensor, its version, and one entry in an
 * array. */
#include "kept_outputs.h"

static void
drop_kept(Kept *kept, Py_ssize_t count)
{
    for (Py_ssize_t place = 0; place < count; place++)
        Py_XDECREF(kept[place].tensor);
    PyMem_Free(kept);
}

/* The outputs that are kept, and their number: they are the caller's from now on. */
static Kept *
take_kept(KeptOutputs *outputs, Py_ssize_t *count)
{
    Kept *kept = outputs->kept;
    *count = outputs->count;
    outputs->kept = NULL;
    outputs->count = 0;
    outputs->bytes = 0;
    return kept;
}

static void
kept_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    KeptOutputs *outputs = (KeptOutputs *)self;
    drop_kept(outputs->kept, outputs->count);
    PyMem_Free(outputs->expected);
    Py_XDECREF(outputs->stream);
    Py_XDECREF(outputs->capturing);
    Py_XDECREF(outputs->transforms);
    Py_XDECREF(outputs->functions);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* (modules, most outputs, most bytes, most calls, most elements and bytes of an output, functions of torch, whether there are several devices) */
static PyObject *
kept_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t modules, most, most_looked;
    long long most_bytes, most_elements, largest;
    PyObject *stream, *capturing, *transforms, *functions;
    int several;
    if (!PyArg_ParseTuple(args, "nnLnLL(OOOO)p:KeptOutputs", &modules, &most, &most_bytes, &most_looked, &most_elements, &largest, &stream,
                          &capturing, &transforms, &functions, &several))
        return NULL;
    if (modules < 0 || most < 0) {
        PyErr_SetString(PyExc_ValueError, "numbers must not be negative");
        return NULL;
    }
    KeptOutputs *made = (KeptOutputs *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!made)
        return NULL;
    made->stream = owned(stream);
    made->capturing = owned(capturing);
    made->several = (char)several;
    made->transforms = owned(transforms);
    made->functions = owned(functions);
    made->most = most;
    made->most_bytes = most_bytes;
    made->most_looked = most_looked;
    made->most_elements = most_elements;
    made->largest = largest;
    made->modules = modules;
    made->device = made->step = -1;
    if (!(made->expected = PyMem_Calloc((size_t)(modules ? modules : 1), sizeof(Expected)))) {
        Py_DECREF(made);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t module = 0; module < modules; module++)
        memset(made->expected[module].forms, 0xFF, sizeof(made->expected[module].forms));
    return (PyObject *)made;
}

/* -1 without an exception where it has no version, as one that was made in inference mode. */
static int64_t
version_of(PyObject *tensor)
{
    PyObject *number = PyObject_GetAttr(tensor, state.str_version);
    int64_t version = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    PyErr_Clear();
    return version;
}

/* Whether a function of torch returns `wanted`; an exception counts as no. */
static int
answers(PyObject *function, PyObject *wanted)
{
    PyObject *found = PyObject_CallFunctionObjArgs(function, NULL);
    if (!found)
        PyErr_Clear();
    Py_XDECREF(found); /* None, True and False live on */
    return found == wanted;
}

/* The tensor of an output that is one, or a tuple of one and of None; NULL if it is another. Borrowed. */
static PyObject *
only_tensor(PyObject *output)
{
    if (Py_TYPE(output) == &PyTuple_Type) {
        Py_ssize_t count = PyTuple_Size(output);
        for (Py_ssize_t place = 1; place < count; place++)
            if (PyTuple_GetItem(output, place) != Py_None)
                return NULL;
        output = count ? PyTuple_GetItem(output, 0) : Py_None;
    }
    return Py_TYPE(output) == state.tensor ? output : NULL;
}

static int
on_stream(const KeptOutputs *outputs)
{
    if (outputs->device < 0)
        return 1;
    PyObject *index = PyLong_FromLong(outputs->device);
    PyObject *found = index ? PyObject_CallFunctionObjArgs(outputs->stream, index, NULL) : NULL;
    int64_t stream = found ? PyLong_AsLongLong(found) : -1;
    int failed = !found || PyErr_Occurred() != NULL;
    Py_XDECREF(index);
    Py_XDECREF(found);
    PyErr_Clear();
    if (failed || stream != outputs->current_stream)
        return 0;
    /* A device's default stream cannot capture a graph, but the current stream may be one of another device. */
    return (!stream && !outputs->several) || answers(outputs->capturing, Py_False);
}

int
keep_output(PyObject *keeper, PyObject *output, int32_t module, int32_t row)
{
    KeptOutputs *outputs = (KeptOutputs *)keeper;
    if (!keeper || !PyObject_TypeCheck(keeper, state.kept_type) || !outputs->running || module < 0 || module >= outputs->modules)
        return 0;
    PyObject *tensor = outputs->expected[module].allowed && state.always_view ? only_tensor(output) : NULL;
    if (!tensor || (row >= 0 && !outputs->records) || outputs->count >= outputs->most || outputs->looked >= outputs->most_looked)
        return 0;
    if (!answers(outputs->transforms, Py_None) || !answers(outputs->functions, Py_False))
        return 0;
    DLTensor view;
    if (state.always_view(tensor, &view) < 0) {
        PyErr_Clear();
        outputs->expected[module].allowed = 0; /* torch takes a millisecond to refuse one */
        return 0;
    }
    if (view.device.type != outputs->device_type || (outputs->device >= 0 && view.device.index != outputs->device))
        return 0;
    int64_t memory;
    int32_t kind = kind_of(outputs, module, tensor, &view, &memory);
    int64_t version = kind >= 0 ? version_of(tensor) : -1;
    if (version < 0 || !on_stream(outputs) || outputs->bytes + memory > outputs->most_bytes)
        return 0;
    PyObject *graph = PyObject_GetAttr(tensor, state.str_requires_grad);
    if (!graph)
        PyErr_Clear();
    Py_XDECREF(graph);
    if (graph != Py_False)
        return 0;
    /* A collection of garbage may have run anything in between. */
    if (!outputs->running || outputs->count >= outputs->most)
        return 0;
    if (!outputs->kept && !(outputs->kept = PyMem_Malloc((size_t)outputs->most * sizeof(Kept))))
        return 0;
    Kept kept = {owned(tensor), address_in(&view), version, outputs->looked++, now_ns(), module, row, kind, kind, outputs->step};
    outputs->kept[outputs->count++] = kept;
    outputs->bytes += memory;
    outputs->expected[module].calls++;
    outputs->expected[module].elements += outputs->kinds[kind].elements;
    return 1;
}

/* (module, tensor, stream): keep outputs of this module that are like this one from now on; false if it cannot be read here, or lies on
 * another device or stream than what is kept now. */
static PyObject *
kept_allow(PyObject *self, PyObject *args)
{
    KeptOutputs *outputs = (KeptOutputs *)self;
    Py_ssize_t module;
    PyObject *tensor;
    long long stream;
    int64_t memory;
    DLTensor view;
    if (!PyArg_ParseTuple(args, "nOL:allow", &module, &tensor, &stream))
        return NULL;
    if (module < 0 || module >= outputs->modules) {
        PyErr_SetString(PyExc_IndexError, "index out of range");
        return NULL;
    }
    if (Py_TYPE(tensor) != state.tensor || !state.always_view)
        return PyBool_FromLong(0);
    if (state.always_view(tensor, &view) < 0) {
        PyErr_Clear();
        return PyBool_FromLong(0);
    }
    /* Of the memory of the host there is one, whatever its index. */
    int32_t device = view.device.type != DEVICE_OF_HOST ? view.device.index : -1;
    if (!outputs->count) {
        outputs->device_type = view.device.type;
        outputs->device = device;
        outputs->current_stream = stream;
    }
    if (outputs->device_type != view.device.type || outputs->device != device || outputs->current_stream != stream ||
        kind_of(outputs, (int32_t)module, tensor, &view, &memory) < 0)
        return PyBool_FromLong(0);
    outputs->expected[module].allowed = 1;
    return PyBool_FromLong(1);
}

/* Allow what another one allows, of the same modules. */
static PyObject *
kept_learn(PyObject *self, PyObject *given)
{
    KeptOutputs *outputs = (KeptOutputs *)self;
    const KeptOutputs *other = (const KeptOutputs *)given;
    if (!PyObject_TypeCheck(given, state.kept_type) || other->modules != outputs->modules || outputs->count) {
        PyErr_SetString(PyExc_ValueError, "only one with nothing kept learns from one of the same modules");
        return NULL;
    }
    memcpy(outputs->expected, other->expected, (size_t)outputs->modules * sizeof(Expected));
    for (Py_ssize_t module = 0; module < outputs->modules; module++)
        outputs->expected[module].calls = outputs->expected[module].elements = 0;
    /* Kinds that nothing has any more would fill the table. */
    outputs->known_kinds = other->known_kinds < MOST_KINDS ? other->known_kinds : 0;
    memcpy(outputs->kinds, other->kinds, sizeof(outputs->kinds));
    for (Py_ssize_t module = 0; !outputs->known_kinds && module < outputs->modules; module++)
        memset(outputs->expected[module].forms, 0xFF, sizeof(outputs->expected[module].forms));
    outputs->device_type = other->device_type;
    outputs->device = other->device;
    outputs->current_stream = other->current_stream;
    return owned(Py_None);
}

/* Keep no more outputs of a module; of any module without one. */
static PyObject *
kept_refuse(PyObject *self, PyObject *args)
{
    KeptOutputs *outputs = (KeptOutputs *)self;
    Py_ssize_t module = -1;
    if (!PyArg_ParseTuple(args, "|n:refuse", &module))
        return NULL;
    for (Py_ssize_t place = 0; place < outputs->modules; place++)
        if (module < 0 || place == module)
            outputs->expected[place].allowed = 0;
    return owned(Py_None);
}

static int
is_unchanged(const Kept *kept)
{
    DLTensor view;
    if (version_of(kept->tensor) != kept->version)
        return 0;
    if (state.always_view && state.always_view(kept->tensor, &view) == 0)
        return address_in(&view) == kept->address;
    PyErr_Clear();
    return 0;
}

/* (tensors, notes) of the entries of a group, whose tensors are taken out of them. */
static PyObject *
group_of(const KeptOutputs *outputs, Kept *kept, Py_ssize_t count, int32_t group, int tensors_too)
{
    Py_ssize_t number = 0, place = 0;
    for (Py_ssize_t at = 0; at < count; at++)
        number += kept[at].tensor && kept[at].group == group;
    PyObject *tensors = PyList_New(tensors_too ? number : 0);
    PyObject *notes = PyBytes_FromStringAndSize(NULL, number * (Py_ssize_t)sizeof(Note));
    PyObject *both = tensors && notes ? PyTuple_Pack(2, tensors, notes) : NULL;
    for (Py_ssize_t at = 0; both && at < count; at++) {
        if (!kept[at].tensor || kept[at].group != group)
            continue;
        Note note = {kept[at].call, kept[at].time, kept[at].module, kept[at].row, kept[at].step, (int32_t)outputs->kinds[kept[at].kind].elements};
        memcpy(PyBytes_AsString(notes) + place * (Py_ssize_t)sizeof(Note), &note, sizeof(Note));
        if (tensors_too)
            PyList_SetItem(tensors, place, kept[at].tensor); /* a list of this length: cannot fail */
        else
            Py_DECREF(kept[at].tensor);
        kept[at].tensor = NULL;
        place++;
    }
    Py_XDECREF(tensors);
    Py_XDECREF(notes);
    return both;
}

/* What was kept, as (tensors, notes) of each kind, and the notes of outputs that have changed since. */
static PyObject *
kept_take(PyObject *self, PyObject *unused)
{
    enum { CHANGED = -1 };
    KeptOutputs *outputs = (KeptOutputs *)self;
    Py_ssize_t count;
    Kept *kept = take_kept(outputs, &count);
    for (Py_ssize_t place = 0; place < count; place++)
        if (!is_unchanged(&kept[place]))
            kept[place].group = CHANGED;
    PyObject *groups = PyList_New(0), *changed = groups ? group_of(outputs, kept, count, CHANGED, 0) : NULL, *both = NULL;
    for (Py_ssize_t place = 0; changed && groups && place < count; place++) {
        if (!kept[place].tensor)
            continue;
        PyObject *group = group_of(outputs, kept, count, kept[place].group, 1);
        if (!group || PyList_Append(groups, group) < 0)
            Py_CLEAR(groups);
        Py_XDECREF(group);
    }
    if (groups && changed)
        both = PyTuple_Pack(2, groups, PyTuple_GetItem(changed, 1));
    Py_XDECREF(groups);
    Py_XDECREF(changed);
    drop_kept(kept, count);
    return both;
}

/* (module, calls, elements of all) of the outputs that were kept since the last time. */
static PyObject *
kept_counted(PyObject *self, PyObject *unused)
{
    KeptOutputs *outputs = (KeptOutputs *)self;
    PyObject *found = PyList_New(0);
    for (Py_ssize_t place = 0; found && place < outputs->modules; place++) {
        Expected *expected = &outputs->expected[place];
        if (!expected->calls)
            continue;
        PyObject *one = Py_BuildValue("nLL", place, (long long)expected->calls, (long long)expected->elements);
        expected->calls = expected->elements = 0;
        if (!one || PyList_Append(found, one) < 0)
            Py_CLEAR(found);
        Py_XDECREF(one);
    }
    return found;
}

/* Keep nothing any more, and count none of it. */
static PyObject *
kept_drop(PyObject *self, PyObject *unused)
{
    KeptOutputs *outputs = (KeptOutputs *)self;
    Py_ssize_t count;
    Kept *kept = take_kept(outputs, &count);
    outputs->running = 0;
    drop_kept(kept, count);
    return owned(Py_None);
}

static PyMemberDef kept_members[] = {
    {"running", T_BOOL, offsetof(KeptOutputs, running), 0, NULL},
    {"records", T_BOOL, offsetof(KeptOutputs, records), 0, NULL},
    {"looked", T_PYSSIZET, offsetof(KeptOutputs, looked), 0, NULL},
    {"count", T_PYSSIZET, offsetof(KeptOutputs, count), READONLY, NULL},
    {"device", T_INT, offsetof(KeptOutputs, device), READONLY, NULL},
    {"stream", T_LONGLONG, offsetof(KeptOutputs, current_stream), READONLY, NULL},
    {"modules", T_PYSSIZET, offsetof(KeptOutputs, modules), READONLY, NULL},
    {"step", T_INT, offsetof(KeptOutputs, step), 0, NULL},
    {"bytes", T_LONGLONG, offsetof(KeptOutputs, bytes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef kept_methods[] = {
    {"allow", kept_allow, METH_VARARGS, NULL},
    {"counted", kept_counted, METH_NOARGS, NULL},
    {"drop", kept_drop, METH_NOARGS, NULL},
    {"learn", kept_learn, METH_O, NULL},
    {"refuse", kept_refuse, METH_VARARGS, NULL},
    {"take", kept_take, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot kept_slots[] = {
    {Py_tp_doc, (void *)"See capture.values.kept."},
    {Py_tp_new, kept_new},
    {Py_tp_dealloc, kept_dealloc},
    {Py_tp_members, kept_members},
    {Py_tp_methods, kept_methods},
    {0, NULL},
};

PyType_Spec kept_spec = {"inferspan.capture.modules._recorder.KeptOutputs", sizeof(KeptOutputs), 0, Py_TPFLAGS_DEFAULT, kept_slots};
