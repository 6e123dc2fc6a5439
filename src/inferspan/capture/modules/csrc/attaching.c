/* What each request does for each module, for the usual case: groups.Observed and ModuleObservers in Python handle every other one.
 *
 * Observers are put into the slots of modules and taken out again in each recorded pass. Before, in each request, the structure of the model
 * is compared with that of the last one. */
#include "recorder.h"

/* The dictionary of a module as a new reference; NULL without an exception if it is something else. */
static PyObject *
dictionary_of(PyObject *module)
{
    PyObject *names = PyObject_GetAttr(module, state.str_dict);
    if (names && !PyDict_Check(names))
        Py_CLEAR(names);
    return names;
}

/* Whether the dictionary has an empty table of hooks under this name: 1, 0, or -1 with an exception. */
static int
has_no_hooks(PyObject *names, PyObject *table)
{
    PyObject *hooks = PyDict_GetItemWithError(names, table);
    if (!hooks)
        return PyErr_Occurred() ? -1 : 0;
    return PyDict_Check(hooks) && PyDict_Size(hooks) == 0;
}

/* Whether the slot is free, and the program has no hooks on the module: 1, 0, or -1 with an exception. */
static int
is_free(PyObject *names)
{
    PyObject *taken = PyDict_GetItemWithError(names, state.str_slot);
    if (!taken && PyErr_Occurred())
        return -1;
    if (taken && taken != Py_None)
        return 0;
    for (int table = FORWARD_HOOKS; table < HOOK_TABLES; table++) {
        int none = has_no_hooks(names, state.str_hook_tables[table]);
        if (none <= 0)
            return none;
    }
    return 1;
}

/* Let a spare caller observe the module: 1, 0 if the module is none of the usual case, or -1 with an exception. */
static int
attach_spare(PyObject *module, PyObject *info, PyObject *spare, PyObject *attached)
{
    PyObject *key = NULL, *found = NULL, *names = dictionary_of(module);
    int done = names ? is_free(names) : PyErr_Occurred() ? -1 : 0;
    if (done > 0) {
        key = PyLong_FromVoidPtr(info);
        found = key ? PyDict_GetItemWithError(spare, key) : NULL;
        if (!found || !PyObject_TypeCheck(found, state.caller_type) || ((ModuleCaller *)found)->module) {
            done = PyErr_Occurred() ? -1 : 0;
            found = NULL;
        }
    }
    if (found) {
        ModuleCaller *caller = (ModuleCaller *)owned(found);
        PyObject *object = (PyObject *)caller;
        done = -1;
        if (PyDict_DelItem(spare, key) == 0 && take_module(caller, module) == 0) {
            Py_CLEAR(caller->watch);
            caller->number = -1;
            /* It is known to who detaches before it is in the slot, and attached before another thread may call it. */
            if (PyList_Append(attached, object) == 0) {
                caller->attached = 1;
                done = PyDict_SetItem(names, state.str_slot, object) == 0 ? 1 : -1;
            }
        }
        Py_DECREF(object);
    }
    Py_XDECREF(key);
    Py_XDECREF(names);
    return done;
}

PyObject *
attach_callers(PyObject *unused, PyObject *args)
{
    (void)unused;
    PyObject *selection, *spare, *attached;
    if (!PyArg_ParseTuple(args, "O!O!O!:attach_callers", &PyList_Type, &selection, &PyDict_Type, &spare, &PyList_Type, &attached))
        return NULL;
    PyObject *left = PyList_New(0);
    for (Py_ssize_t place = 0; left && place < PyList_Size(selection); place++) {
        PyObject *entry = owned(PyList_GetItem(selection, place));
        int done = PyTuple_Check(entry) && PyTuple_Size(entry) == 4 ? 0 : -1;
        if (done < 0)
            PyErr_SetString(PyExc_TypeError, "the selection has tuples of four");
        PyObject *module = done < 0 ? NULL : PyObject_CallNoArgs(PyTuple_GetItem(entry, 0));
        if (!module)
            done = -1;
        else if (module != Py_None && PyTuple_GetItem(entry, 3) == Py_True)
            done = attach_spare(module, PyTuple_GetItem(entry, 1), spare, attached);
        if (done < 0 || (!done && PyList_Append(left, entry) < 0))
            Py_CLEAR(left);
        Py_XDECREF(module);
        Py_DECREF(entry);
    }
    return left;
}

/* Take the caller, the last one of the list, out of its module's slot, and keep it as a spare one if nobody else has it: 1, 0 for an
 * object that Python has to detach, or -1 with an exception. */
static int
detach_last(PyObject *attached, Py_ssize_t last, PyObject *spare)
{
    PyObject *object = PyList_GetItem(attached, last);
    if (!object || !PyObject_TypeCheck(object, state.caller_type) || !((ModuleCaller *)object)->module)
        return object ? 0 : -1;
    ModuleCaller *caller = (ModuleCaller *)owned(object);
    int done = -1;
    /* What the program has put into the slot meanwhile stays there. */
    caller->attached = 0;
    PyObject *key = NULL, *names = dictionary_of(caller->module);
    PyObject *held = names ? PyDict_GetItemWithError(names, state.str_slot) : NULL;
    if (held == object && PyDict_DelItem(names, state.str_slot) < 0)
        goto end;
    if (PyErr_Occurred())
        goto end;
    /* Reading the dictionary may run code that changes the list. */
    if (!names || last >= PyList_Size(attached) || PyList_GetItem(attached, last) != object) {
        done = 0;
        goto end;
    }
    if (PyList_SetSlice(attached, last, last + 1, NULL) < 0)
        goto end;
    done = 1;
    /* Known to nobody but this function: the program may have taken it out of the slot, and call it. */
    if ((uint32_t)Py_REFCNT(object) == 1 && !caller->stage && !caller->running) {
        Py_CLEAR(caller->module);
        key = PyLong_FromVoidPtr(caller->info);
        if (!key || PyDict_SetItem(spare, key, object) < 0)
            done = -1;
    }
end:
    Py_XDECREF(key);
    Py_XDECREF(names);
    Py_DECREF(object);
    return done;
}

PyObject *
detach_callers(PyObject *unused, PyObject *args)
{
    (void)unused;
    PyObject *attached, *spare;
    if (!PyArg_ParseTuple(args, "O!O!:detach_callers", &PyList_Type, &attached, &PyDict_Type, &spare))
        return NULL;
    for (Py_ssize_t size; (size = PyList_Size(attached)) > 0;) {
        int done = detach_last(attached, size - 1, spare);
        if (done < 0)
            return NULL;
        if (!done)
            break;
    }
    Py_RETURN_NONE;
}

/* Whether the children of a module are those with these identities, in this order: 1, 0, or -1 with an exception. */
static int
has_children(PyObject *names, PyObject *identities)
{
    PyObject *children = PyDict_GetItemWithError(names, state.str_modules), *key, *child;
    /* An OrderedDict, as torch once had here, may have another order than the dictionary that it is. */
    if (!children || !PyDict_CheckExact(children))
        return PyErr_Occurred() ? -1 : 0;
    if (PyDict_Size(children) != PyList_Size(identities))
        return 0;
    Py_ssize_t position = 0;
    for (Py_ssize_t place = 0; PyDict_Next(children, &position, &key, &child); place++) {
        void *known = PyLong_AsVoidPtr(PyList_GetItem(identities, place));
        if (child != known)
            return PyErr_Occurred() ? -1 : 0;
    }
    return 1;
}

/* Whether a module is not compiled, as its class's forward is still this one: 1, 0 if Python has to look, or -1 with an exception. */
static int
runs_forward(PyObject *module, PyObject *names, PyObject *forward, PyTypeObject *observers)
{
    PyObject *taken = PyDict_GetItemWithError(names, state.str_slot);
    if (!taken && PyErr_Occurred())
        return -1;
    if (taken && taken != Py_None && !PyObject_TypeCheck(taken, observers))
        return 0;
    if (PyDict_GetItemWithError(names, state.str_forward) || PyErr_Occurred())
        return PyErr_Occurred() ? -1 : 0;
    PyObject *present = PyObject_GetAttr((PyObject *)Py_TYPE(module), state.str_forward);
    if (!present) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return -1;
        PyErr_Clear();
        return 0;
    }
    int same = present == forward;
    Py_DECREF(present);
    return same;
}

/* Whether a module of `above` is as it was: 1, 0 if Python has to look, or -1 with an exception. So below for one of `parents`. */
static int
is_same_above(PyObject *entry, PyTypeObject *observers)
{
    PyObject *reference, *forward, *identities;
    int compiled;
    if (!PyArg_ParseTuple(entry, "OpO!O:same_structure", &reference, &compiled, &PyList_Type, &identities, &forward))
        return -1;
    PyObject *module = compiled ? NULL : PyObject_CallNoArgs(reference);
    PyObject *names = module && module != Py_None ? dictionary_of(module) : NULL;
    int same = names ? runs_forward(module, names, forward, observers) : 0;
    if (same > 0)
        same = has_children(names, identities);
    Py_XDECREF(names);
    Py_XDECREF(module);
    return PyErr_Occurred() ? -1 : same;
}

static int
is_same_parent(PyObject *entry)
{
    PyObject *reference, *children, *references;
    if (!PyArg_ParseTuple(entry, "OO!O!:same_structure", &reference, &PyList_Type, &children, &PyList_Type, &references))
        return -1;
    PyObject *module = PyObject_CallNoArgs(reference);
    PyObject *names = module && module != Py_None ? dictionary_of(module) : NULL;
    PyObject *held = names ? PyDict_GetItemWithError(names, state.str_modules) : NULL;
    int same = held && PyDict_Check(held) && PyList_Size(children) == PyList_Size(references);
    for (Py_ssize_t place = 0; same && place < PyList_Size(children); place++) {
        PyObject *child = PyObject_CallNoArgs(PyList_GetItem(references, place));
        same = child && child != Py_None && PyDict_GetItemWithError(held, PyList_GetItem(children, place)) == child;
        Py_XDECREF(child);
    }
    Py_XDECREF(names);
    Py_XDECREF(module);
    return PyErr_Occurred() ? -1 : same;
}

PyObject *
same_structure(PyObject *unused, PyObject *args)
{
    (void)unused;
    PyObject *above, *parents, *observers;
    if (!PyArg_ParseTuple(args, "O!O!O!:same_structure", &PyList_Type, &above, &PyList_Type, &parents, &PyType_Type, &observers))
        return NULL;
    int same = 1;
    for (Py_ssize_t place = 0; same > 0 && place < PyList_Size(above); place++)
        same = is_same_above(PyList_GetItem(above, place), (PyTypeObject *)observers);
    for (Py_ssize_t place = 0; same > 0 && place < PyList_Size(parents); place++)
        same = is_same_parent(PyList_GetItem(parents, place));
    return same < 0 ? NULL : PyBool_FromLong(same);
}
