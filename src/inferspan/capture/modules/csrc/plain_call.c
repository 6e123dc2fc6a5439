/* What torch would do to call a module, and what becomes of exceptions of ours on the way. */
#include "recorder.h"

int
is_plain(PyObject *module, PyObject *own)
{
    PyObject *found = PyObject_GetAttr((PyObject *)Py_TYPE(module), state.str_call_impl);
    if (!found)
        return -1;
    Py_DECREF(found); /* the class has it */
    int usual = found == state.call_impl;
    if (!(found = PyObject_CallFunctionObjArgs(state.tracing, NULL)))
        return -1;
    int traced = found == Py_None ? 0 : PyObject_IsTrue(found);
    Py_DECREF(found);
    if (traced)
        return traced < 0 ? -1 : TRACED;
    int plain = usual && PyDict_GetItemWithError(own, state.str_call_impl) == NULL && !PyErr_Occurred();
    for (int place = 0; plain > 0 && place < HOOK_TABLES; place++) {
        PyObject *table = PyDict_GetItemWithError(own, state.str_hook_tables[place]);
        plain = table ? PyObject_Not(table) : 0;
        if (plain > 0) {
            table = PyDict_GetItemWithError(state.hook_tables, state.str_global_hook_tables[place]);
            plain = table ? PyObject_Not(table) : 0;
        }
    }
    return plain < 0 || PyErr_Occurred() ? -1 : plain ? PLAIN : NOT_PLAIN;
}

int
contained(void)
{
    PyObject *type, *value, *trace, *reported = NULL;
    /* The second time for what reporting has raised: itself, if it is none of ours, or another one. */
    for (int times = 0; times < 2; times++) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            Py_XDECREF(reported);
            return -1;
        }
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        if (trace)
            PyException_SetTraceback(value, trace);
        if (value == reported) {
            PyErr_Restore(type, value, trace);
            Py_DECREF(reported);
            return -1;
        }
        Py_XDECREF(reported);
        reported = owned(value);
        PyObject *done = PyObject_CallFunctionObjArgs(state.failed, value, NULL);
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        if (done) {
            Py_DECREF(done);
            Py_DECREF(reported);
            return 0;
        }
    }
    int foreign = !PyErr_ExceptionMatches(PyExc_Exception);
    if (!foreign) {
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        foreign = value == reported;
        if (foreign)
            PyErr_Restore(type, value, trace);
        else {
            /* For example next to the recursion limit, where the module itself may still have room, or in a log handler of the program. */
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
        }
    }
    Py_DECREF(reported);
    return foreign ? -1 : 0;
}
