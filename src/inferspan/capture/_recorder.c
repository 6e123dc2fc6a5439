/* The recorder of module calls in C: nothing yet. */

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#include <Python.h>

#define ABI 1 /* ABI of extension.py */

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "inferspan.capture._recorder", NULL, 0, NULL};

PyMODINIT_FUNC PyInit__recorder(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddIntConstant(module, "ABI", ABI) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
