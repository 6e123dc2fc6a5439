/* The module _recorder: bind(), the types, and the state that its files share. */
#include "recorder.h"

/* Incremented here and in extension.py with every change of the interface between C and Python. */
#define ABI 13

State state;

/* Not an error: a torch without this interface, or with a later version of it. */
static int
find_view(PyObject *tensor_class)
{
    static const char *names[] = {"__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"};
    state.view = NULL;
    state.refusals = 0;
    state.always_view = NULL;
    for (int place = 0; place < 2 && !state.view; place++) {
        PyObject *capsule = PyObject_GetAttrString(tensor_class, names[place]);
        if (!capsule) {
            if (!PyErr_ExceptionMatches(PyExc_AttributeError))
                return -1;
            PyErr_Clear();
            continue;
        }
        if (PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
            const DLPackExchangeAPI *found = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
            if (found && found->header.version.major == 1)
                state.view = state.always_view = found->tensor_from_object;
        }
        Py_DECREF(capsule);
    }
    return 0;
}

static PyObject *
bind(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"current", "describe", "failed", "error_type", "tensor", "clock", "tracing", "call_impl", "hook_tables", "columns",
                            "looks_into", "most_entries", NULL};
    PyObject *given[11];
    Py_ssize_t entries;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOOOOOOn:bind", names, &given[0], &given[1], &given[2], &given[3], &given[4], &given[5],
                                     &given[6], &given[7], &given[8], &given[9], &given[10], &entries))
        return NULL;
    if (!PyType_Check(given[4]) || !PyDict_Check(given[8])) {
        PyErr_SetString(PyExc_TypeError, "tensor must be a class, and hook_tables a dictionary");
        return NULL;
    }
    PyObject **places[] = {&state.current, &state.describe, &state.failed, &state.error_type, (PyObject **)&state.tensor,
                            &state.perf_counter, &state.tracing,
                            &state.call_impl, &state.hook_tables, &state.columns, &state.looks_into};
    for (int place = 0; place < 11; place++) {
        PyObject *before = *places[place];
        *places[place] = owned(given[place]);
        Py_XDECREF(before);
    }
    state.most_entries = entries;
    if (state.descriptions)
        PyDict_Clear(state.descriptions); /* they are those of another describe() */
    return find_view(given[4]) < 0 ? NULL : owned(Py_None);
}

static PyMethodDef module_methods[] = {
    {"bind", (PyCFunction)(void (*)(void))bind, METH_VARARGS | METH_KEYWORDS, "Pass the Python objects that recording needs; to be called before the first ModuleCaller is created."},
    {"attach_callers", attach_callers, METH_VARARGS, "(selection, spare, attached) -> entries of the selection that get no spare ModuleCaller here."},
    {"detach_callers", detach_callers, METH_VARARGS, "(attached, spare): take ModuleCallers off, the last one first, up to one that is none."},
    {"same_structure", same_structure, METH_VARARGS, "(above, parents, class of our observers) -> whether no module was added, taken out, replaced or compiled, as far as can be told here."},
    {"count_values", count_values, METH_VARARGS, "(address, count, kind) -> (nan, inf, near the limit) of floating point values in memory."},
    {"moments_of", moments_of, METH_VARARGS, "(address, count, kind) -> (max, min, mean, square, nonfinite, nan, zeros), over the finite values."},
    {"reduce_logits", reduce_logits, METH_VARARGS, "(address, rows, vocabulary, stride, ids or 0, their stride, target) -> whether all rows were finite and are reduced."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "inferspan.capture.modules._recorder", NULL, -1, module_methods, NULL, NULL, NULL, NULL};

/* A second load of the extension gets the types that are in use. */
static int
add_type(PyObject *module, PyTypeObject **place, const char *name, PyType_Spec *spec)
{
    if (!*place && !(*place = (PyTypeObject *)PyType_FromSpec(spec)))
        return -1;
    if (PyModule_AddObject(module, name, owned((PyObject *)*place)) == 0)
        return 0;
    Py_DECREF(*place);
    return -1;
}

PyMODINIT_FUNC
PyInit__recorder(void)
{
    struct {
        PyObject **place;
        const char *text;
    } texts[] = {
        {&state.str_append, "append"},
        {&state.str_call, "call"},
        {&state.str_call_impl, "_call_impl"},
        {&state.str_dict, "__dict__"},
        {&state.str_dtype, "dtype"},
        {&state.str_native, "native"},
        {&state.str_forward, "forward"},
        {&state.str_instead, "_instead"},
        {&state.str_modules, "_modules"},
        {&state.str_other, "_OTHER"},
        {&state.str_record, "record"},
        {&state.str_is_view, "_is_view"},
        {&state.str_nbytes, "nbytes"},
        {&state.str_requires_grad, "requires_grad"},
        {&state.str_seconds, "seconds"},
        {&state.str_shape, "shape"},
        {&state.str_slot, "_compiled_call_impl"},
        {&state.str_stage, "stage"},
        {&state.str_storage, "untyped_storage"},
        {&state.str_version, "_version"},
        {&state.str_hook_tables[0], "_backward_hooks"},
        {&state.str_hook_tables[1], "_backward_pre_hooks"},
        {&state.str_hook_tables[2], "_forward_hooks"},
        {&state.str_hook_tables[3], "_forward_pre_hooks"},
        {&state.str_global_hook_tables[0], "_global_backward_hooks"},
        {&state.str_global_hook_tables[1], "_global_backward_pre_hooks"},
        {&state.str_global_hook_tables[2], "_global_forward_hooks"},
        {&state.str_global_hook_tables[3], "_global_forward_pre_hooks"},
    };
    struct {
        PyTypeObject **place;
        const char *name;
        PyType_Spec *spec;
    } types[] = {
        {&state.calls_type, "Calls", &calls_spec},
        {&state.call_log_type, "CallLog", &call_log_spec},
        {&state.native_events_type, "NativeEvents", &native_events_spec},
        {&state.boundary_events_type, "BoundaryEvents", &boundary_events_spec},
        {&state.boundaries_type, "Boundaries", &boundaries_spec},
        {&state.caller_type, "ModuleCaller", &caller_spec},
        {&state.figures_type, "CallFigures", &figures_spec},
        {&state.kept_type, "KeptOutputs", &kept_spec},
        {&state.template_type, "PassTemplate", &template_spec},
    };
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    for (size_t place = 0; place < sizeof(texts) / sizeof(*texts); place++)
        if (!*texts[place].place && !(*texts[place].place = PyUnicode_InternFromString(texts[place].text)))
            goto failure;
    if (!state.empty && !(state.empty = PyTuple_New(0)))
        goto failure;
    for (size_t place = 0; place < sizeof(types) / sizeof(*types); place++)
        if (add_type(module, types[place].place, types[place].name, types[place].spec) < 0)
            goto failure;
    if (PyModule_AddIntConstant(module, "ABI", ABI) < 0)
        goto failure;
    return module;

failure:
    Py_DECREF(module);
    return NULL;
}
