/* Calls: the ended module calls of one pass, one row of a cache line each. records.ModuleCalls is its counterpart in Python. */
#include "recorder.h"

enum { NUMBER, PARENT, INFO, START, END, INPUTS, OUTPUTS, FAILURE, STATISTICS, FIELDS };

void
drop_rows(Row *rows, Py_ssize_t count)
{
    for (Py_ssize_t place = 0; place < count; place++) {
        Py_XDECREF(rows[place].info);
        Py_XDECREF(rows[place].inputs);
        Py_XDECREF(rows[place].outputs);
        Py_XDECREF(rows[place].failure);
    }
    PyMem_Free(rows);
}

static void
calls_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    drop_rows(((Calls *)self)->rows, ((Calls *)self)->count);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t
calls_length(PyObject *self)
{
    return ((Calls *)self)->count;
}

static PyObject *
field_of(const Row *row, int field)
{
    switch (field) {
    case NUMBER:
        return PyLong_FromLong(row->number);
    case PARENT:
        return PyLong_FromLong(row->parent);
    case INFO:
        return owned(row->info);
    case START:
        return PyLong_FromLongLong(row->start);
    case END:
        return PyLong_FromLongLong(row->end);
    case INPUTS:
        return owned(row->inputs);
    case OUTPUTS:
        return owned(row->outputs);
    case FAILURE:
        return owned(row->failure ? row->failure : Py_None);
    default:
        return row->statistics < 0 ? owned(Py_None) : PyLong_FromLongLong(row->statistics);
    }
}

/* For the iterator of rows(). */
static PyObject *
calls_item(PyObject *self, Py_ssize_t place)
{
    Calls *calls = (Calls *)self;
    if (place < 0 || place >= calls->count) {
        PyErr_SetString(PyExc_IndexError, "index out of range");
        return NULL;
    }
    PyObject *row = PyTuple_New(FIELDS);
    for (int field = 0; row && field < FIELDS; field++) {
        PyObject *value = field_of(&calls->rows[place], field);
        if (!value || PyTuple_SetItem(row, field, value) < 0)
            Py_CLEAR(row);
    }
    return row;
}

static PyObject *
calls_rows(PyObject *self, PyObject *unused)
{
    return PySeqIter_New(self);
}

static PyObject *
calls_columns(PyObject *self, PyObject *unused)
{
    Calls *calls = (Calls *)self;
    PyObject *columns = PyTuple_New(FIELDS), *named;
    for (int field = 0; columns && field < FIELDS; field++) {
        PyObject *column = PyList_New(calls->count);
        for (Py_ssize_t place = 0; column && place < calls->count; place++) {
            PyObject *value = field_of(&calls->rows[place], field);
            if (!value || PyList_SetItem(column, place, value) < 0)
                Py_CLEAR(column);
        }
        if (!column || PyTuple_SetItem(columns, field, column) < 0)
            Py_CLEAR(columns);
    }
    if (!columns || !state.columns)
        return columns;
    named = PyObject_CallObject(state.columns, columns);
    Py_DECREF(columns);
    return named;
}

/* The row of a call without statistics; NULL if there is none. */
static Row *
row_of_number(Calls *calls, long number)
{
    for (Py_ssize_t place = 0; place < calls->count; place++)
        if (calls->rows[place].number == number && calls->rows[place].statistics < 0)
            return &calls->rows[place];
    return NULL;
}

/* (number, moment): when the call of this number ended, and its module, if it has no statistics and that was no later; else None. */
static PyObject *
calls_end_of(PyObject *self, PyObject *args)
{
    long number;
    long long moment;
    if (!PyArg_ParseTuple(args, "lL:end_of", &number, &moment))
        return NULL;
    const Row *row = row_of_number((Calls *)self, number);
    return row && row->end <= moment ? Py_BuildValue("LO", (long long)row->end, row->info) : owned(Py_None);
}

/* (number, index): the call of this number has these statistics. */
static PyObject *
calls_mark(PyObject *self, PyObject *args)
{
    long number;
    long long index;
    if (!PyArg_ParseTuple(args, "lL:mark", &number, &index))
        return NULL;
    Row *row = row_of_number((Calls *)self, number);
    if (row)
        row->statistics = index;
    return PyBool_FromLong(row != NULL);
}

static PyMethodDef calls_methods[] = {
    {"columns", calls_columns, METH_NOARGS, NULL},
    {"figures", new_figures, METH_VARARGS | METH_STATIC, NULL},
    {"end_of", calls_end_of, METH_VARARGS, NULL},
    {"mark", calls_mark, METH_VARARGS, NULL},
    {"rows", calls_rows, METH_NOARGS, NULL},
    {"template", new_template, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_doc, (void *)"See records.ModuleCalls."},
    {Py_tp_dealloc, calls_dealloc},
    {Py_tp_methods, calls_methods},
    {Py_sq_length, calls_length},
    {Py_sq_item, calls_item},
    {0, NULL},
};

PyType_Spec calls_spec = {"inferspan.capture.modules._recorder.Calls", sizeof(Calls), 0, Py_TPFLAGS_DEFAULT, calls_slots};
