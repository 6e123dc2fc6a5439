/* KeptOutputs: outputs of modules on a device that are kept until the pass ends, and counted together then; capture.values.kept uses it.
 *
 * Python looks at the first output of each module in a request, and allows others like it to be kept here: in a call that is one reading of
 * the clock and of the tensor, its version, and one entry in an array. */
#include "recorder.h"

enum { DEVICE_OF_HOST = 1 }; /* kDLCPU */

/* What a module must return for its output to be kept. */
typedef struct {
    int64_t shape[SHORT_KEY], bytes, elements, calls;
    int32_t dimensions, kind; /* the caller's number for this shape and type */
    uint32_t type;
    int allowed;
} Expected;

typedef struct {
    PyObject *tensor;
    void *address;
    int64_t version, call, time;
    int32_t module, row; /* number of the recorded call in its pass, or -1 */
    int32_t kind;
} Kept;

/* What the caller keeps of a call: native sizes, see kept.NOTE. */
typedef struct {
    int64_t call, time;
    int32_t module, row;
} Note;

typedef struct {
    PyObject_HEAD
    PyObject *stream, *transforms, *functions; /* functions of torch: the stream of a device, and what changes tensors or calls now */
    int64_t current_stream, bytes, most_bytes;
    int32_t device_type, device;
    char running; /* whether Python has seen the pass */
    char records; /* whether a recorded call has no other statistics */
    Py_ssize_t looked, most_looked, most, count, modules;
    Kept *kept;
    Expected *expected;
} KeptOutputs;

static void
drop_kept(Kept *kept, Py_ssize_t count)
{
    for (Py_ssize_t place = 0; place < count; place++)
        Py_XDECREF(kept[place].tensor);
    PyMem_Free(kept);
}

static void
kept_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    KeptOutputs *outputs = (KeptOutputs *)self;
    drop_kept(outputs->kept, outputs->count);
    PyMem_Free(outputs->expected);
    Py_XDECREF(outputs->stream);
    Py_XDECREF(outputs->transforms);
    Py_XDECREF(outputs->functions);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* (modules, most outputs, most bytes, most calls, stream, transforms, functions) */
static PyObject *
kept_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t modules, most, most_looked;
    long long most_bytes;
    PyObject *stream, *transforms, *functions;
    if (!PyArg_ParseTuple(args, "nnLnOOO:KeptOutputs", &modules, &most, &most_bytes, &most_looked, &stream, &transforms, &functions))
        return NULL;
    if (modules < 0 || most < 0) {
        PyErr_SetString(PyExc_ValueError, "numbers must not be negative");
        return NULL;
    }
    KeptOutputs *made = (KeptOutputs *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!made)
        return NULL;
    made->stream = owned(stream);
    made->transforms = owned(transforms);
    made->functions = owned(functions);
    made->most = most;
    made->most_bytes = most_bytes;
    made->most_looked = most_looked;
    made->modules = modules;
    made->device = -1;
    if (!(made->expected = PyMem_Calloc((size_t)(modules ? modules : 1), sizeof(Expected)))) {
        Py_DECREF(made);
        return PyErr_NoMemory();
    }
    return (PyObject *)made;
}

static uint32_t
type_of(const DLTensor *view)
{
    return (uint32_t)view->dtype.code << 24 | (uint32_t)view->dtype.bits << 16 | view->dtype.lanes;
}

static void *
address_of(const DLTensor *view)
{
    return (char *)view->data + view->byte_offset;
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
    return !failed && stream == outputs->current_stream;
}

static int
is_expected(const KeptOutputs *outputs, const Expected *expected, const DLTensor *view)
{
    if (view->device.type != outputs->device_type || (outputs->device >= 0 && view->device.index != outputs->device) ||
        view->ndim != expected->dimensions || type_of(view) != expected->type)
        return 0;
    for (int32_t axis = 0; axis < view->ndim; axis++)
        if (view->shape[axis] != expected->shape[axis])
            return 0;
    return 1;
}

int
keep_output(PyObject *keeper, PyObject *output, int32_t module, int32_t row)
{
    KeptOutputs *outputs = (KeptOutputs *)keeper;
    if (!keeper || !PyObject_TypeCheck(keeper, state.kept_type) || !outputs->running || module < 0 || module >= outputs->modules)
        return 0;
    const Expected *expected = &outputs->expected[module];
    PyObject *tensor = expected->allowed && state.view ? only_tensor(output) : NULL;
    if (!tensor || (row >= 0 && !outputs->records) || outputs->count >= outputs->most || outputs->looked >= outputs->most_looked ||
        outputs->bytes + expected->bytes > outputs->most_bytes)
        return 0;
    if (!answers(outputs->transforms, Py_None) || !answers(outputs->functions, Py_False))
        return 0;
    DLTensor view;
    if (state.view(tensor, &view) < 0) {
        PyErr_Clear();
        return 0;
    }
    int64_t version = is_expected(outputs, expected, &view) ? version_of(tensor) : -1;
    if (version < 0 || !on_stream(outputs))
        return 0;
    PyObject *graph = PyObject_GetAttr(tensor, state.str_requires_grad);
    if (!graph)
        PyErr_Clear();
    Py_XDECREF(graph);
    if (graph != Py_False)
        return 0;
    if (!outputs->kept && !(outputs->kept = PyMem_Malloc((size_t)outputs->most * sizeof(Kept))))
        return 0;
    Kept kept = {owned(tensor), address_of(&view), version, outputs->looked++, now_ns(), module, row, expected->kind};
    outputs->kept[outputs->count++] = kept;
    outputs->bytes += expected->bytes;
    outputs->expected[module].calls++;
    return 1;
}

/* (module, tensor, kind, elements, bytes, stream): keep others like this one. Does nothing for tensors that cannot be read here, or that are
 * on another device or stream than those before. */
static PyObject *
kept_allow(PyObject *self, PyObject *args)
{
    KeptOutputs *outputs = (KeptOutputs *)self;
    Py_ssize_t module;
    PyObject *tensor;
    int kind;
    long long elements, bytes, stream;
    DLTensor view;
    if (!PyArg_ParseTuple(args, "nOiLLL:allow", &module, &tensor, &kind, &elements, &bytes, &stream))
        return NULL;
    if (module < 0 || module >= outputs->modules) {
        PyErr_SetString(PyExc_IndexError, "index out of range");
        return NULL;
    }
    if (Py_TYPE(tensor) != state.tensor || !state.view)
        return PyBool_FromLong(0);
    if (state.view(tensor, &view) < 0) {
        PyErr_Clear();
        return PyBool_FromLong(0);
    }
    if (view.ndim > SHORT_KEY)
        return PyBool_FromLong(0);
    /* Of the memory of the host there is one, whatever its index. */
    int32_t device = view.device.type != DEVICE_OF_HOST ? view.device.index : -1;
    if (!outputs->device_type) {
        outputs->device_type = view.device.type;
        outputs->device = device;
        outputs->current_stream = stream;
    }
    if (outputs->device_type != view.device.type || outputs->device != device || outputs->current_stream != stream)
        return PyBool_FromLong(0);
    Expected expected = {.bytes = bytes, .elements = elements, .calls = outputs->expected[module].calls, .dimensions = view.ndim, .kind = kind,
                         .type = type_of(&view), .allowed = 1};
    if (expected.calls && outputs->expected[module].elements != elements)
        return PyBool_FromLong(0); /* until its calls have been asked for */
    memcpy(expected.shape, view.shape, (size_t)view.ndim * sizeof(int64_t));
    outputs->expected[module] = expected;
    return PyBool_FromLong(1);
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
    if (state.view && state.view(kept->tensor, &view) == 0)
        return address_of(&view) == kept->address;
    PyErr_Clear();
    return 0;
}

/* (kind, tensors, notes) of the entries of a kind, whose tensors are taken out of them. */
static PyObject *
group_of(Kept *kept, Py_ssize_t count, int32_t kind, int tensors_too)
{
    Py_ssize_t number = 0, place = 0;
    for (Py_ssize_t at = 0; at < count; at++)
        number += kept[at].tensor && kept[at].kind == kind;
    PyObject *tensors = PyList_New(tensors_too ? number : 0);
    PyObject *notes = PyBytes_FromStringAndSize(NULL, number * (Py_ssize_t)sizeof(Note));
    PyObject *group = tensors && notes ? Py_BuildValue("iOO", (int)kind, tensors, notes) : NULL;
    for (Py_ssize_t at = 0; group && at < count; at++) {
        if (!kept[at].tensor || kept[at].kind != kind)
            continue;
        Note note = {kept[at].call, kept[at].time, kept[at].module, kept[at].row};
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
    return group;
}

/* What was kept, as (kind, tensors, notes) of each kind, and the notes of outputs that have changed since. */
static PyObject *
kept_take(PyObject *self, PyObject *unused)
{
    enum { IS_CHANGED = -1 };
    KeptOutputs *outputs = (KeptOutputs *)self;
    Kept *kept = outputs->kept;
    Py_ssize_t count = outputs->count;
    outputs->kept = NULL;
    outputs->count = 0;
    outputs->bytes = 0;
    for (Py_ssize_t place = 0; place < count; place++)
        if (!is_unchanged(&kept[place]))
            kept[place].kind = IS_CHANGED;
    PyObject *groups = PyList_New(0), *changed = groups ? group_of(kept, count, IS_CHANGED, 0) : NULL, *both = NULL;
    for (Py_ssize_t place = 0; changed && groups && place < count; place++) {
        if (!kept[place].tensor)
            continue;
        PyObject *group = group_of(kept, count, kept[place].kind, 1);
        if (!group || PyList_Append(groups, group) < 0)
            Py_CLEAR(groups);
        Py_XDECREF(group);
    }
    if (groups && changed)
        both = PyTuple_Pack(2, groups, PyTuple_GetItem(changed, 2));
    Py_XDECREF(groups);
    Py_XDECREF(changed);
    drop_kept(kept, count);
    return both;
}

/* (module, calls, elements of one) of the outputs that were kept since the last time. */
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
        expected->calls = 0;
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
    Kept *kept = outputs->kept;
    Py_ssize_t count = outputs->count;
    outputs->kept = NULL;
    outputs->count = 0;
    outputs->bytes = 0;
    outputs->running = 0;
    drop_kept(kept, count);
    return owned(Py_None);
}

static PyMemberDef kept_members[] = {
    {"running", T_BOOL, offsetof(KeptOutputs, running), 0, NULL},
    {"records", T_BOOL, offsetof(KeptOutputs, records), 0, NULL},
    {"looked", T_PYSSIZET, offsetof(KeptOutputs, looked), 0, NULL},
    {"count", T_PYSSIZET, offsetof(KeptOutputs, count), READONLY, NULL},
    {"bytes", T_LONGLONG, offsetof(KeptOutputs, bytes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef kept_methods[] = {
    {"allow", kept_allow, METH_VARARGS, NULL},
    {"counted", kept_counted, METH_NOARGS, NULL},
    {"drop", kept_drop, METH_NOARGS, NULL},
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
