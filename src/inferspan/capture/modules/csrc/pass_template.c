/* PassTemplate: the OTLP bytes of a forward pass, filled in for each pass with the same calls. spans.packed.template is its counterpart in
 * Python, and says how a span is laid out. The bytes are written while other threads run. */
#include "recorder.h"

enum { TAG = 0x12, HEAD = 3, ID = 23, PARENT = 33, START = 42, END = 51, LEAST_CHUNK = 59, ID_SIZE = 8 };

/* A call of the pass. `parent` is the place of the call around it, or the number of all calls; inputs and outputs are the last ones. */
typedef struct {
    int32_t number, above, parent;
    PyObject *info, *inputs, *outputs;
    PyObject *tail;
} Part;

typedef struct {
    PyObject_HEAD
    Part *parts;
    Py_ssize_t count;
} PassTemplate;

static void
template_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PassTemplate *template = (PassTemplate *)self;
    for (Py_ssize_t place = 0; place < template->count; place++) {
        Py_DECREF(template->parts[place].info);
        Py_DECREF(template->parts[place].inputs);
        Py_DECREF(template->parts[place].outputs);
        Py_DECREF(template->parts[place].tail);
    }
    PyMem_Free(template->parts);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* (places of the parents, bytes at the end of each span) -> a template of these calls. */
PyObject *
new_template(PyObject *self, PyObject *args)
{
    Calls *calls = (Calls *)self;
    PyObject *parents, *tails;
    if (!PyArg_ParseTuple(args, "O!O!:template", &PyList_Type, &parents, &PyList_Type, &tails))
        return NULL;
    if (PyList_Size(parents) != calls->count || PyList_Size(tails) != calls->count) {
        PyErr_SetString(PyExc_ValueError, "a template has one parent and one tail for each call");
        return NULL;
    }
    PassTemplate *made = PyObject_New(PassTemplate, state.template_type);
    if (!made)
        return NULL;
    made->count = 0;
    if (!(made->parts = PyMem_Malloc((size_t)(calls->count ? calls->count : 1) * sizeof(Part)))) {
        Py_DECREF(made);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t place = 0; place < calls->count; place++) {
        const Row *row = &calls->rows[place];
        PyObject *tail = PyList_GetItem(tails, place);
        long above = PyLong_AsLong(PyList_GetItem(parents, place));
        if (above < 0 || above > calls->count || !tail || !PyBytes_Check(tail)) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "parents are places of calls, and tails bytes");
            Py_DECREF(made);
            return NULL;
        }
        Part part = {row->number, row->parent, (int32_t)above, owned(row->info), owned(row->inputs), owned(row->outputs), owned(tail)};
        made->parts[made->count++] = part;
    }
    return (PyObject *)made;
}

static int
append_place(PyObject *list, Py_ssize_t place)
{
    PyObject *number = PyLong_FromSsize_t(place);
    int done = number ? PyList_Append(list, number) : -1;
    Py_XDECREF(number);
    return done;
}

/* calls -> (places whose shapes have changed, places of calls with statistics or a failure), or None if these are other calls. */
static PyObject *
template_compare(PyObject *self, PyObject *given)
{
    PassTemplate *template = (PassTemplate *)self;
    if (!PyObject_TypeCheck(given, state.calls_type)) {
        PyErr_SetString(PyExc_TypeError, "Calls are expected");
        return NULL;
    }
    const Calls *calls = (const Calls *)given;
    if (calls->count != template->count)
        return owned(Py_None);
    for (Py_ssize_t place = 0; place < calls->count; place++) {
        const Row *row = &calls->rows[place];
        const Part *part = &template->parts[place];
        if (row->info != part->info || row->number != part->number || row->parent != part->above)
            return owned(Py_None);
    }
    PyObject *changed = PyList_New(0), *special = PyList_New(0);
    for (Py_ssize_t place = 0; changed && special && place < calls->count; place++) {
        const Row *row = &calls->rows[place];
        const Part *part = &template->parts[place];
        if ((row->inputs != part->inputs || row->outputs != part->outputs) && append_place(changed, place) < 0)
            Py_CLEAR(changed);
        else if ((row->failure || row->statistics >= 0) && append_place(special, place) < 0)
            Py_CLEAR(special);
    }
    PyObject *both = changed && special ? PyTuple_Pack(2, changed, special) : NULL;
    Py_XDECREF(changed);
    Py_XDECREF(special);
    return both;
}

/* (place, calls, bytes): these are the inputs, outputs and last bytes of the call from now on. */
static PyObject *
template_renew(PyObject *self, PyObject *args)
{
    PassTemplate *template = (PassTemplate *)self;
    Calls *calls;
    PyObject *tail;
    Py_ssize_t place;
    if (!PyArg_ParseTuple(args, "nO!O!:renew", &place, state.calls_type, &calls, &PyBytes_Type, &tail))
        return NULL;
    if (place < 0 || place >= template->count || place >= calls->count) {
        PyErr_SetString(PyExc_IndexError, "index out of range");
        return NULL;
    }
    Part *part = &template->parts[place];
    PyObject *inputs = part->inputs, *outputs = part->outputs, *before = part->tail;
    part->inputs = owned(calls->rows[place].inputs);
    part->outputs = owned(calls->rows[place].outputs);
    part->tail = owned(tail);
    Py_DECREF(inputs);
    Py_DECREF(outputs);
    Py_DECREF(before);
    return owned(Py_None);
}

static int
varint(char *target, uint64_t value)
{
    int size = 0;
    for (; value > 0x7F; value >>= 7)
        target[size++] = (char)((value & 0x7F) | 0x80);
    target[size++] = (char)value;
    return size;
}

static void
put_little(char *target, uint64_t value)
{
    for (int byte = 0; byte < 8; byte++)
        target[byte] = (char)(value >> 8 * byte);
}

static Py_ssize_t
varint_size(uint64_t value)
{
    Py_ssize_t size = 1;
    for (; value > 0x7F; value >>= 7)
        size++;
    return size;
}

/* What a span has of its own. The objects are held, because others may renew the template while the spans are written. */
typedef struct {
    PyObject *tail, *more;
    const char *tail_bytes, *more_bytes;
    Py_ssize_t tail_size, more_size;
    double seconds; /* on the device */
    int timed;
} Own;

/* All that is written, gathered with the lock held and used without it. */
typedef struct {
    const Part *parts;
    const Row *rows;
    const Own *own;
    const char *chunk, *ids;
    Py_ssize_t first, stop, chunk_size, time_size; /* the chunk ends with a device time of this size, which not every call has */
    int64_t offset;
} Filling;

static Py_ssize_t
head_size(const Filling *filling, const Own *own)
{
    return filling->chunk_size - HEAD - (own->timed ? 0 : filling->time_size);
}

static void
write_spans(const Filling *filling, char *target)
{
    for (Py_ssize_t place = filling->first; place < filling->stop; place++) {
        const Own *own = &filling->own[place - filling->first];
        Py_ssize_t head = head_size(filling, own);
        *target++ = TAG;
        target += varint(target, (uint64_t)(head + own->tail_size + own->more_size));
        memcpy(target, filling->chunk + HEAD, (size_t)head);
        char *base = target - HEAD;
        memcpy(base + ID, filling->ids + ID_SIZE * place, ID_SIZE);
        memcpy(base + PARENT, filling->ids + ID_SIZE * (Py_ssize_t)filling->parts[place].parent, ID_SIZE);
        put_little(base + START, (uint64_t)(filling->rows[place].start + filling->offset));
        put_little(base + END, (uint64_t)(filling->rows[place].end + filling->offset));
        target += head;
        if (own->timed) {
            uint64_t bits;
            memcpy(&bits, &own->seconds, sizeof bits);
            put_little(target - 8, bits);
        }
        memcpy(target, own->tail_bytes, (size_t)own->tail_size);
        target += own->tail_size;
        if (own->more_size) {
            memcpy(target, own->more_bytes, (size_t)own->more_size);
            target += own->more_size;
        }
    }
}

/* What a call has beside its tail: 0, or -1. */
static int
gather_one(const Filling *filling, Py_ssize_t place, Own *own, PyObject *device, PyObject *extra)
{
    PyObject *number = PyLong_FromLong(filling->rows[place].number), *at = PyLong_FromSsize_t(place), *seconds = NULL;
    if (number && at && device && (seconds = PyDict_GetItemWithError(device, number))) {
        own->seconds = PyFloat_AsDouble(seconds);
        own->timed = 1;
    }
    if (extra && !PyErr_Occurred() && (own->more = PyDict_GetItemWithError(extra, at))) {
        Py_INCREF(own->more);
        own->more_bytes = PyBytes_AsString(own->more);
        own->more_size = own->more_bytes ? PyBytes_Size(own->more) : 0;
    }
    Py_XDECREF(number);
    Py_XDECREF(at);
    return PyErr_Occurred() ? -1 : 0;
}

/* Fill in what the calls have of their own: the size of all spans, or -1. */
static Py_ssize_t
gather(const Filling *filling, Own *own, PyObject *device, PyObject *extra)
{
    Py_ssize_t size = 0;
    for (Py_ssize_t place = filling->first; place < filling->stop; place++, own++) {
        own->tail = owned(filling->parts[place].tail);
        own->tail_bytes = PyBytes_AsString(own->tail);
        own->tail_size = PyBytes_Size(own->tail);
        if ((device || extra) && gather_one(filling, place, own, device, extra) < 0)
            return -1;
        Py_ssize_t body = head_size(filling, own) + own->tail_size + own->more_size;
        size += 1 + varint_size((uint64_t)body) + body;
    }
    return size;
}

/* (calls, first place, place after the last, beginning of a span, size of the device time at its end, offset of the times, ids, device times
 * or None, further bytes by place) -> the spans. Ids are eight bytes for each call of the pass, and those of the span above them. */
static PyObject *
template_fill(PyObject *self, PyObject *args)
{
    PassTemplate *template = (PassTemplate *)self;
    Calls *calls;
    Filling filling;
    Py_ssize_t ids_size;
    long long offset;
    PyObject *device, *extra, *filled = NULL;
    if (!PyArg_ParseTuple(args, "O!nny#nLy#OO!:fill", state.calls_type, &calls, &filling.first, &filling.stop, &filling.chunk,
                          &filling.chunk_size, &filling.time_size, &offset, &filling.ids, &ids_size, &device, &PyDict_Type, &extra))
        return NULL;
    int timed = device != Py_None;
    if (calls->count != template->count || filling.first < 0 || filling.stop > calls->count || filling.first >= filling.stop ||
        ids_size != ID_SIZE * (calls->count + 1) || filling.time_size < 8 * timed || filling.chunk_size < LEAST_CHUNK + filling.time_size ||
        (timed && !PyDict_Check(device))) {
        PyErr_SetString(PyExc_ValueError, "these are not the calls, ids and times of the template");
        return NULL;
    }
    Py_ssize_t count = filling.stop - filling.first;
    Own *own = PyMem_Calloc((size_t)count, sizeof(Own));
    if (!own)
        return PyErr_NoMemory();
    filling.parts = template->parts;
    filling.rows = calls->rows;
    filling.own = own;
    filling.offset = offset;
    Py_ssize_t size = gather(&filling, own, timed ? device : NULL, PyDict_Size(extra) ? extra : NULL);
    filled = size < 0 ? NULL : PyBytes_FromStringAndSize(NULL, size);
    if (filled) {
        char *target = PyBytes_AsString(filled);
        Py_BEGIN_ALLOW_THREADS
        write_spans(&filling, target);
        Py_END_ALLOW_THREADS
    }
    for (Py_ssize_t place = 0; place < count; place++) {
        Py_XDECREF(own[place].tail);
        Py_XDECREF(own[place].more);
    }
    PyMem_Free(own);
    return filled;
}

static PyMethodDef template_methods[] = {
    {"compare", template_compare, METH_O, NULL},
    {"fill", template_fill, METH_VARARGS, NULL},
    {"renew", template_renew, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot template_slots[] = {
    {Py_tp_doc, (void *)"See spans.packed.template."},
    {Py_tp_dealloc, template_dealloc},
    {Py_tp_methods, template_methods},
    {0, NULL},
};

PyType_Spec template_spec = {"inferspan.capture.modules._recorder.PassTemplate", sizeof(PassTemplate), 0, Py_TPFLAGS_DEFAULT, template_slots};
