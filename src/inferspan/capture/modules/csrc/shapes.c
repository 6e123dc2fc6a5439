/* Describes inputs and outputs of module calls, by comparing them with those of the last call. shapes.py is its counterpart in Python. */
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

enum { LONGEST_KEY = 256, UNSIGNED = 1 };

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
    return is_scalar(type) || !(PyDict_Check(value) || PyList_Check(value) || PyTuple_Check(value) || PyType_IsSubtype(type, state.tensor));
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

static void
build_key(Description *last, PyObject *value, PyObject *named)
{
    int64_t key[LONGEST_KEY];
    Walk walk = {.how = BUILD, .last = last, .known = last->known, .key = key};
    int64_t *more = NULL;
    if (walk_through(&walk, value, named) <= 0) {
        PyErr_Clear();
        last->length = NO_KEY;
        return;
    }
    if (last->known != walk.known)
        return;
    if (walk.at > SHORT_KEY && !(more = PyMem_Malloc((size_t)walk.at * sizeof(int64_t))))
        return;
    memcpy(more ? more : last->brief, key, (size_t)walk.at * sizeof(int64_t));
    PyMem_Free(last->more);
    last->more = more;
    last->length = walk.at;
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

PyObject *
describe_like(Description *last, PyObject *value, PyObject *named)
{
    PyObject *known = owned(last->known), *found, *values = NULL;
    Walk walk = {.how = last->length >= 0 && state.view ? BY_KEY : BY_PAIRS, .last = last, .known = known};
    int same = walk_through(&walk, value, named);
    if (same == 0 && walk.how == BY_KEY && last->length == NO_KEY) {
        walk = (Walk){.how = BY_PAIRS, .last = last, .known = known};
        same = walk_through(&walk, value, named);
    }
    if (same > 0) {
        /* Python may have run since: only the description that is still the last one may get a key. */
        if (walk.how == BY_PAIRS && last->length == UNKNOWN_KEY && state.view && last->known == known)
            build_key(last, value, named);
        return known;
    }
    Py_DECREF(known);
    if (same < 0) {
        /* For example a nested tensor, which has no shape; shapes.describe handles it. */
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
    found = PyObject_CallFunctionObjArgs(state.describe, values ? values : value, NULL);
    Py_XDECREF(values);
    if (found && !PyTuple_Check(found)) {
        Py_DECREF(found);
        PyErr_SetString(PyExc_TypeError, "describe() has not returned a tuple");
        return NULL;
    }
    if (found) {
        PyObject *before = last->known;
        last->known = owned(found);
        if (last->length != NO_KEY)
            last->length = UNKNOWN_KEY;
        Py_DECREF(before);
    }
    return found;
}
