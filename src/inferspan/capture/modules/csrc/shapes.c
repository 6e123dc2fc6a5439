/* Describes inputs and outputs of module calls: by comparing them with those of the last call, then by looking up a key that all modules
 * share, so that of the layers of a model only the first one pays for new sizes. shapes.py is its counterpart in Python. */
#include "recorder.h"

/* A pass over the plain tensors in the inputs or outputs of a module. */
typedef struct {
    enum { BY_PAIRS, BY_KEY, BUILD } how;
    Description *last;
    PyObject *known;
    Py_ssize_t place; /* in `known` */
    int32_t at;       /* in the key */
    int64_t *key;     /* being built */
} Walk;

enum { LONGEST_KEY = 256, UNSIGNED = 1, MOST_KEYS = 4096, KINDS = 8 };

/* Types that shapes.looks_into was asked about and looks into none of. The references are weak: a class of the program may go. */
static struct {
    PyTypeObject *type;
    PyObject *reference;
} opaque[KINDS];
static int next_kind;

/* Whether a description never has tensors in objects of this type, which is no container: 1 or 0; -1 with an exception set. */
static int
is_opaque(PyTypeObject *type)
{
    for (int place = 0; place < KINDS; place++)
        if (opaque[place].type == type && PyWeakref_GetObject(opaque[place].reference) == (PyObject *)type)
            return 1;
    PyObject *found = PyObject_CallFunctionObjArgs(state.looks_into, type, NULL);
    int open = found ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    if (open)
        return open < 0 ? -1 : 0;
    PyObject *reference = PyWeakref_NewRef((PyObject *)type, NULL);
    if (!reference)
        return -1;
    int place = next_kind;
    next_kind = (next_kind + 1) % KINDS;
    PyObject *before = opaque[place].reference;
    opaque[place].type = type;
    opaque[place].reference = reference;
    Py_XDECREF(before);
    return 1;
}

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
        if (!state.view)
            return 0;
        if (state.view(value, &seen) != 0) {
            if (++state.refusals >= MOST_REFUSALS)
                state.view = NULL;
            if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
                return -1;
            PyErr_Clear();
            walk->last->length = NO_KEY;
            return 0;
        }
        const int64_t *key = walk->last->more ? walk->last->more : walk->last->brief;
        int32_t after = walk->at + 1 + seen.ndim;
        size_t bytes = (size_t)seen.ndim * sizeof(int64_t);
        if (seen.ndim < 0 || (bytes && !seen.shape) || after > (walk->how == BUILD ? LONGEST_KEY : walk->last->length))
            return 0;
        /* DLPack reports torch's integers of 1 to 7 bits as 8 bits wide: none of them gets into a key. */
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
    PyObject *pair = PyTuple_GetItem(walk->known, walk->place++), *dtype = PyObject_GetAttr(value, state.str_dtype);
    if (!dtype)
        return -1;
    Py_DECREF(dtype); /* torch keeps one object of each */
    if (dtype != PyTuple_GetItem(pair, 1))
        return 0;
    PyObject *shape = PyObject_GetAttr(value, state.str_shape);
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
    if (type == state.tensor)
        return meet(walk, value);
    if (type == &PyTuple_Type) {
        Py_ssize_t parts = PyTuple_Size(value);
        if (parts > state.most_entries)
            return 0;
        for (Py_ssize_t part = 0; part < parts; part++) {
            PyObject *one = PyTuple_GetItem(value, part);
            int same = Py_TYPE(one) == state.tensor ? meet(walk, one) : 0;
            if (same <= 0)
                return same;
        }
        return 1;
    }
    if (is_scalar(type))
        return 1;
    return PyDict_Check(value) || PyList_Check(value) || PyTuple_Check(value) || PyType_IsSubtype(type, state.tensor) ? 0 : is_opaque(type);
}

/* Whether the walk reaches the end of `value`, a tensor or a tuple of inputs or outputs, and of the values of `named` (NULL or a dict), and
 * has met as many tensors as the last call had. */
static int
walk_through(Walk *walk, PyObject *value, PyObject *named)
{
    PyObject *key, *one;
    Py_ssize_t position = 0, entries = named ? PyDict_Size(named) : 0;
    int same;
    if (Py_TYPE(value) == state.tensor)
        same = goes_on(walk, value);
    else {
        Py_ssize_t count = PyTuple_Size(value);
        if (entries && count > 8)
            count = 8;
        same = count + entries <= state.most_entries;
        for (Py_ssize_t part = 0; same > 0 && part < count; part++)
            same = goes_on(walk, PyTuple_GetItem(value, part));
        while (same > 0 && named && PyDict_Next(named, &position, &key, &one)) {
            /* A torch function mode of the program may change the dictionary when it is asked for a shape. */
            Py_INCREF(one);
            same = goes_on(walk, one);
            Py_DECREF(one);
        }
    }
    if (same <= 0 || walk->how == BUILD)
        return same;
    /* Another thread may have replaced the key meanwhile by one that is not of `known`. */
    return walk->how == BY_PAIRS ? walk->place == PyTuple_Size(walk->known)
           : walk->at == walk->last->length && walk->last->known == walk->known;
}

/* The key of a tensor or tuple and of the values of `named`: 1 and its numbers in `*length`; 0 if it has none; -1 with an exception set. */
static int
build_key(Description *last, PyObject *value, PyObject *named, int64_t *key, int32_t *length)
{
    if (!state.view || last->length == NO_KEY)
        return 0;
    Walk walk = {.how = BUILD, .last = last, .known = last->known, .key = key};
    int built = walk_through(&walk, value, named);
    *length = walk.at;
    if (built >= 0 || !PyErr_ExceptionMatches(PyExc_Exception))
        return built;
    PyErr_Clear();
    return 0;
}

/* This is the last description now; `length` is that of the key, which may be UNKNOWN_KEY or NO_KEY. */
static void
keep(Description *last, PyObject *known, const int64_t *key, int32_t length)
{
    int64_t *more = NULL, *former = last->more;
    size_t bytes = length > 0 ? (size_t)length * sizeof(int64_t) : 0;
    if (length > SHORT_KEY && !(more = PyMem_Malloc(bytes)))
        length = UNKNOWN_KEY;
    else if (bytes)
        memcpy(more ? more : last->brief, key, bytes);
    PyObject *before = last->known;
    last->known = owned(known);
    last->length = length;
    last->more = more;
    PyMem_Free(former);
    Py_XDECREF(before);
}

/* The description with this key, a borrowed reference; NULL if none is known, or with an exception set. */
static PyObject *
look_up(PyObject *key)
{
    if (!state.descriptions && !(state.descriptions = PyDict_New()))
        return NULL;
    return PyDict_GetItemWithError(state.descriptions, key);
}

/* Add what Python has found, if it is sure to be that of the key: another thread may have changed a tensor since the key was built, and Python
 * looks at eight tensors only. */
static int
learn(Description *last, PyObject *value, PyObject *named, PyObject *found, PyObject *name, const int64_t *key, int32_t length)
{
    Walk walk = {.how = BY_PAIRS, .last = last, .known = found};
    int same = walk_through(&walk, value, named);
    if (same <= 0)
        return same;
    if (PyDict_Size(state.descriptions) >= MOST_KEYS)
        PyDict_Clear(state.descriptions);
    if (PyDict_SetItem(state.descriptions, name, found) < 0)
        return -1;
    keep(last, found, key, length);
    return 1;
}

void
forget_description(Description *last)
{
    PyObject *known = last->known;
    last->known = NULL;
    last->length = UNKNOWN_KEY;
    PyMem_Free(last->more);
    last->more = NULL;
    Py_XDECREF(known);
}

/* Ask shapes.describe. */
static PyObject *
describe(PyObject *value, PyObject *named)
{
    PyObject *values = NULL;
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
    PyObject *found = PyObject_CallFunctionObjArgs(state.describe, values ? values : value, NULL);
    Py_XDECREF(values);
    if (found && !PyTuple_Check(found)) {
        Py_DECREF(found);
        PyErr_SetString(PyExc_TypeError, "describe() has not returned a tuple");
        return NULL;
    }
    return found;
}

PyObject *
describe_like(Description *last, PyObject *value, PyObject *named)
{
    PyObject *known = owned(last->known), *found;
    Walk walk = {.how = last->length >= 0 && state.view ? BY_KEY : BY_PAIRS, .last = last, .known = known};
    int same = walk_through(&walk, value, named);
    if (same == 0 && walk.how == BY_KEY && last->length == NO_KEY) {
        walk = (Walk){.how = BY_PAIRS, .last = last, .known = known};
        same = walk_through(&walk, value, named);
    }
    if (same > 0) {
        int64_t key[LONGEST_KEY];
        int32_t length = UNKNOWN_KEY;
        if (walk.how == BY_PAIRS && last->length == UNKNOWN_KEY) {
            int built = build_key(last, value, named, key, &length);
            /* Python may have run since: only the description that is still the last one may get a key. */
            if (last->known == known && built >= 0)
                keep(last, known, key, built ? length : NO_KEY);
            if (built < 0)
                Py_CLEAR(known);
        }
        return known;
    }
    Py_DECREF(known);
    if (same < 0) {
        /* For example a nested tensor, which has no shape; shapes.describe handles it. */
        if (!PyErr_ExceptionMatches(PyExc_Exception))
            return NULL;
        PyErr_Clear();
    }
    int64_t key[LONGEST_KEY];
    int32_t length = UNKNOWN_KEY;
    int built = build_key(last, value, named, key, &length);
    PyObject *name = built > 0 ? PyBytes_FromStringAndSize((char *)key, (Py_ssize_t)(length * sizeof(int64_t))) : NULL;
    found = name ? look_up(name) : NULL;
    if (found) {
        Py_INCREF(found);
        keep(last, found, key, length);
    }
    else if (!PyErr_Occurred() && (found = describe(value, named))) {
        if ((same = name ? learn(last, value, named, found, name, key, length) : 0) == 0)
            keep(last, found, NULL, last->length == NO_KEY ? NO_KEY : UNKNOWN_KEY);
        if (same < 0)
            Py_CLEAR(found);
    }
    Py_XDECREF(name);
    return found;
}
