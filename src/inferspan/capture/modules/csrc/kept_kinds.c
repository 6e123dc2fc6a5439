/* The shapes and types of outputs that are kept: values of one kind are counted together. */
#include "kept_outputs.h"

static int
is_of(const Kind *kind, const DLTensor *view)
{
    int same = view->ndim == kind->dimensions && type_of(view) == kind->type;
    for (int32_t axis = 0; same && axis < view->ndim; axis++)
        same = view->shape[axis] == kind->shape[axis];
    return same;
}

/* Bytes of the memory of a tensor if that is small, else 0: it may be a part of a large one, which keeping it would keep. */
static int64_t
small_memory(const KeptOutputs *outputs, PyObject *tensor)
{
    PyObject *storage = PyObject_CallMethodObjArgs(tensor, state.str_storage, NULL);
    PyObject *bytes = storage ? PyObject_CallMethodObjArgs(storage, state.str_nbytes, NULL) : NULL;
    int64_t size = bytes ? PyLong_AsLongLong(bytes) : -1;
    Py_XDECREF(storage);
    Py_XDECREF(bytes);
    PyErr_Clear();
    return size > 0 && size <= outputs->largest ? size : 0;
}

/* The kind of a tensor whose values can be counted; -1 if it is not such a one. */
static int32_t
new_kind(KeptOutputs *outputs, const DLTensor *view)
{
    int floating = (view->dtype.code == FLOAT && view->dtype.bits >= 16) || view->dtype.code == BFLOAT;
    if (!floating || view->dtype.lanes != 1 || view->ndim > SHORT_KEY)
        return -1;
    int64_t elements = 1;
    for (int32_t axis = 0; axis < view->ndim; axis++)
        elements *= view->shape[axis];
    if (elements < 1 || elements > outputs->most_elements)
        return -1;
    for (int32_t kind = 0; kind < outputs->known_kinds; kind++)
        if (is_of(&outputs->kinds[kind], view))
            return kind;
    if (outputs->known_kinds == MOST_KINDS)
        return -1;
    Kind *made = &outputs->kinds[outputs->known_kinds];
    made->bytes = elements * view->dtype.bits / 8;
    made->elements = elements;
    made->dimensions = view->ndim;
    made->type = type_of(view);
    memcpy(made->shape, view->shape, (size_t)view->ndim * sizeof(int64_t));
    return outputs->known_kinds++;
}

int32_t
kind_of(KeptOutputs *outputs, int32_t module, PyObject *tensor, const DLTensor *view, int64_t *memory)
{
    Expected *expected = &outputs->expected[module];
    for (int form = 0; form < FORMS; form++)
        if (expected->forms[form] >= 0 && is_of(&outputs->kinds[expected->forms[form]], view)) {
            PyObject *part = PyObject_CallMethodObjArgs(tensor, state.str_is_view, NULL);
            PyErr_Clear();
            Py_XDECREF(part); /* True and False live on */
            *memory = part == Py_False ? outputs->kinds[expected->forms[form]].bytes : small_memory(outputs, tensor);
            return *memory ? expected->forms[form] : -1;
        }
    *memory = small_memory(outputs, tensor);
    int32_t kind = *memory ? new_kind(outputs, view) : -1;
    if (kind >= 0) {
        memmove(&expected->forms[1], &expected->forms[0], (FORMS - 1) * sizeof(int32_t));
        expected->forms[0] = kind;
    }
    return kind;
}
